"""The commands about data sets."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cgqbench.cli.run import clear_errors

data_app = typer.Typer(no_args_is_help=True, help="The data sets: list, download, where they are.")


@data_app.command("list")
def data_list() -> None:
    """Say which data sets there are, and which of them are at hand."""
    from cgqbench.tasks.data import NAMES, STDLIB, MissingData, data_folder
    from cgqbench.tasks.data.dataset import DamagedData

    console = Console()
    for name in (*NAMES, STDLIB):
        try:
            state = _readiness(name)
        except MissingData:
            state = f"missing: cgq data get {name}"
        except DamagedData as error:
            state = f"damaged: {error}"
        console.print(f"{name:14} {state}", highlight=False)
    console.print(f"in {data_folder()}", highlight=False, soft_wrap=True)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="The data set: cgq data list names them.")],
) -> None:
    """Download a data set's official files, check them, and keep them in the data folder."""
    from cgqbench.tasks.data import STDLIB, fetch

    with clear_errors():
        if name != STDLIB:  # which came with Python
            fetch(name)
        Console().print(f"{escape(name)}: {_readiness(name)}")


def _readiness(name: str) -> str:
    """What there is of a data set; MissingData if not all."""
    from cgqbench.tasks.data import STDLIB, load, standard_library

    if name == STDLIB:
        text = standard_library()
        return f"{len(text.train):,} + {len(text.test):,} windows of text, ready"
    found = load(name)
    return f"{len(found.train.labels):,} + {len(found.test.labels):,} images, ready"
