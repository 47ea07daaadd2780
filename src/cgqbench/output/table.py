"""A table, whatever it is about and wherever it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Some text, and whether it is bold."""

    text: str
    bold: bool = False


class Column(NamedTuple):
    """The head of a column: its title, a note below it, and whether it holds numbers."""

    title: str
    note: str = ""
    numbers: bool = False


class TableCell(NamedTuple):
    """The value of a cell, and notes in small print below it."""

    value: tuple[Span, ...] = ()
    notes: tuple[tuple[Span, ...], ...] = ()


@dataclass(frozen=True)
class Table:
    """Rows of cells below a title and above a caption; the first cell names its row."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    caption: str = ""

    @property
    def spans(self) -> list[Span]:
        """The texts of all cells."""
        cells = [cell for row in self.rows for cell in row]
        return [span for cell in cells for line in (cell.value, *cell.notes) for span in line]


def plain_row(*texts: object) -> tuple[TableCell, ...]:
    """Cells of plain text."""
    return tuple(TableCell((Span(str(text)),)) for text in texts)
