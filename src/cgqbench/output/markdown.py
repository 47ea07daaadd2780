"""A table for a page of Markdown."""

from __future__ import annotations

import html

from cgqbench.output.table import Table, TableCell


def markdown_table(table: Table) -> str:
    """The table between its heading and its caption.

    >>> from cgqbench.output.table import Column
    >>> print(markdown_table(Table("T", (Column("a"), Column("b", "c", numbers=True)), ())))
    ## T
    <BLANKLINE>
    | a | b<br>c |
    |---|---:|
    <BLANKLINE>
    <BLANKLINE>
    <BLANKLINE>
    """
    heads = ["<br>".join(map(_safe, filter(None, column[:2]))) for column in table.columns]
    rules = ["---:" if column.numbers else "---" for column in table.columns]
    rows = [f"| {' | '.join(map(_cell, row))} |" for row in table.rows]
    lines = [f"## {_safe(table.title)}", "", f"| {' | '.join(heads)} |", f"|{'|'.join(rules)}|"]
    return "\n".join([*lines, *rows, "", table.caption, ""])


def _cell(cell: TableCell) -> str:
    return "<br>".join(
        "".join(f"**{_safe(span.text)}**" if span.bold else _safe(span.text) for span in line)
        for line in (cell.value, *cell.notes)
    )


def _safe(text: str) -> str:
    """Text that neither ends a cell nor is read as HTML or emphasis."""
    plain = html.escape(text, quote=False).replace("\n", " ")
    return "".join(f"\\{letter}" if letter in "|*_`[]\\" else letter for letter in plain)
