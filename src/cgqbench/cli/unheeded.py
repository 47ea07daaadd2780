"""Options that a command takes and would not heed."""

from __future__ import annotations

import typer


def refuse_unheeded(context: typer.Context, heeded: set[str], cure: str) -> None:
    """Raise if the user has given an option that is not among these."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    # By its name: some versions of typer bring their own.
    given = {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    if unheeded := sorted(given - heeded):
        names = ", ".join(f"--{name}" for name in unheeded)
        raise ValueError(f"It would not heed {names}. {cure}.")
