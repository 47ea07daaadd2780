"""Tables → text: for the terminal, and for a page of Markdown."""

from __future__ import annotations

import html

from rich.markup import escape
from rich.table import Table

from cgqbench.output.listing import Listing
from cgqbench.output.tables import Grid, Shown, caption


def rich_table(grid: Grid) -> Table:
    """The table for the terminal.

    >>> rich_table(Grid("table1", (), ())).title
    'MNIST and SVHN'
    """
    table = Table(title=escape(grid.heading), caption=escape(caption(grid)), show_lines=True)
    table.add_column("method", no_wrap=True)
    for title, budget in grid.heads:
        table.add_column(f"{escape(title)}\n[dim]{budget}[/dim]", justify="right")
    for row in grid.rows:
        table.add_row(escape(row.label), *(_rich(entry) for entry in row.entries))
    return table


def markdown(grid: Grid) -> str:
    """The table for a page of Markdown, between its heading and its caption."""
    heads = [f"{_safe(title)}<br>{budget}" for title, budget in grid.heads]
    lines = [
        f"## {_safe(grid.heading)}",
        "",
        f"| {' | '.join(['method', *heads])} |",
        f"|{'|'.join(['---', *['---:'] * len(heads)])}|",
    ]
    for row in grid.rows:
        cells = [_safe(row.label), *(_markdown(entry) for entry in row.entries)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", caption(grid), ""])


def rich_listing(listing: Listing) -> Table:
    """A small table for the terminal."""
    table = Table(title=escape(listing.heading), caption=escape(listing.caption))
    for head in listing.heads:
        table.add_column(escape(head))
    for row in listing.rows:
        table.add_row(*map(escape, row))
    return table


def markdown_listing(listing: Listing) -> str:
    """A small table for a page of Markdown."""
    rows = [f"| {' | '.join(map(_safe, row))} |" for row in (listing.heads, *listing.rows)]
    rows.insert(1, "|---" * len(listing.heads) + "|")
    return "\n".join([f"## {_safe(listing.heading)}", "", *rows, "", listing.caption, ""])


def _rich(entry: Shown | None) -> str:
    if entry is None:
        return ""
    value = "".join(
        f"[bold]{escape(piece.text)}[/bold]" if piece.best else escape(piece.text)
        for piece in entry.value
    )
    lines = [
        "".join(
            f"[bold]{escape(piece.text)}[/bold]" if piece.best else f"[dim]{escape(piece.text)}[/]"
            for piece in line
        )
        for line in entry.details
    ]
    return "\n".join([value, *lines])


def _markdown(entry: Shown | None) -> str:
    if entry is None:
        return ""
    return "<br>".join(
        "".join(f"**{_safe(piece.text)}**" if piece.best else _safe(piece.text) for piece in line)
        for line in (entry.value, *entry.details)
    )


def _safe(text: str) -> str:
    """Text that neither ends a cell nor is read as HTML or emphasis."""
    plain = html.escape(text, quote=False).replace("\n", " ")
    return "".join(f"\\{letter}" if letter in "|*_`[]\\" else letter for letter in plain)
