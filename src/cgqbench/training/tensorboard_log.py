"""Rows of a record as scalars for TensorBoard."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cgqbench.experiments.cell import Cell
from cgqbench.records.record import Line


@contextmanager
def tensorboard_log(folder: Path | None, cell: Cell) -> Iterator[Callable[[Line], None]]:
    """A function that logs a row below `folder`, one run for each cell; without one it does not.

    What was logged of the cell before is removed: whoever resumes logs all of its rows again.
    """
    if folder is None:
        yield lambda row: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError(
            'TensorBoard is not installed. Install it (pip install "cgq[bench]"), or leave out '
            "--tensorboard."
        ) from None
    own = folder / cell.experiment / cell.name
    shutil.rmtree(own, ignore_errors=True)
    with SummaryWriter(own) as writer:

        def log(row: Line) -> None:
            for name, value in row.items():
                if name not in ("kind", "epoch") and isinstance(value, int | float):
                    writer.add_scalar(name, value, row["epoch"])
            writer.flush()

        yield log
