"""Options that a command takes and would not heed."""

from __future__ import annotations

import typer


def refuse_unheeded(context: typer.Context, heeded: set[str], cure: str) -> None:
    """Raise if an option that is not among these says anything else than its default."""
    names = []
    for option in context.command.params:
        value = context.params[option.name or ""]
        if option.name in heeded or value in (option.get_default(context), None, [], ()):
            continue
        names.append((option.secondary_opts if value is False else option.opts)[0])
    if names:
        raise ValueError(f"It would not heed {', '.join(names)}. {cure}.")
