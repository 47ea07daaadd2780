"""A table for the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table as RichTable

from cgqbench.output.table import Span, Table, TableCell


def terminal_table(table: Table) -> RichTable:
    """The table as rich prints it; with numbers in it, lines part its rows."""
    numbers = any(column.numbers for column in table.columns)
    shown = RichTable(title=escape(table.title), caption=escape(table.caption), show_lines=numbers)
    for place, column in enumerate(table.columns):
        note = f"\n[dim]{escape(column.note)}[/dim]" if column.note else ""
        shown.add_column(
            escape(column.title) + note,
            justify="right" if column.numbers else "left",
            no_wrap=numbers and place == 0,
        )
    for row in table.rows:
        shown.add_row(*map(_cell, row))
    return shown


def _cell(cell: TableCell) -> str:
    value = "".join(_span(span, "") for span in cell.value)
    return "\n".join(
        [value, *("".join(_span(span, "dim") for span in line) for line in cell.notes)]
    )


def _span(span: Span, style: str) -> str:
    style = "bold" if span.bold else style
    return f"[{style}]{escape(span.text)}[/{style}]" if style else escape(span.text)
