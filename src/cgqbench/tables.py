"""Numbers → tables for the terminal, for Markdown and for the report.

Rows are methods, columns are problems, and an entry reads "train loss / test accuracy".
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.markup import escape
from rich.table import Table

from cgqbench import paper
from cgqbench.record import Run
from cgqbench.summary import Entry, Problem, Statistic, shown, shown_loss, summary

__all__ = ["Grid", "Row", "Shown", "caption", "grids", "markdown", "rich_table", "shown", "summary"]


class Piece(NamedTuple):
    """Some text of an entry, and whether it is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Shown:
    """An entry in words: the value itself, and lines in small print below it."""

    value: tuple[Piece, ...]
    details: tuple[tuple[Piece, ...], ...] = ()


@dataclass(frozen=True)
class Row:
    """A method's entries, one for each column; None where there is no run."""

    label: str
    entries: tuple[Shown | None, ...]


@dataclass(frozen=True)
class Grid:
    """The table of one experiment."""

    experiment: str
    problems: tuple[Problem, ...]
    rows: tuple[Row, ...]
    heads: tuple[tuple[str, str], ...]
    """The heading of each column: what was trained, and the epochs and seeds it had."""


def grids(runs: Sequence[Run]) -> list[Grid]:
    """A table for each experiment in the records."""
    entries = summary(runs)
    experiments = dict.fromkeys(entry.problem.experiment for entry in entries)
    return [
        _grid(experiment, [entry for entry in entries if entry.problem.experiment == experiment])
        for experiment in experiments
    ]


def caption(grid: Grid) -> str:
    """What the numbers of a table are."""
    alone = all("±" not in piece.text for piece in _pieces(grid))
    over = "" if alone else ", mean ± standard deviation over seeds"
    averaged = "Averaged: test accuracy of the anytime average of the weights. "
    with_average = any(piece.text.startswith("averaged") for piece in _pieces(grid))
    return (
        f"Train loss / test accuracy (%) after the last epoch{over}. "
        f"{averaged * with_average}Best of a column in bold; – means diverged."
    )


def rich_table(grid: Grid) -> Table:
    """The table for the terminal.

    >>> rich_table(Grid("table1", (), (), ())).title
    'table1'
    """
    table = Table(title=escape(grid.experiment), caption=escape(caption(grid)), show_lines=True)
    table.add_column("method", no_wrap=True)
    for title, budget in grid.heads:
        table.add_column(f"{escape(title)}\n[dim]{budget}[/dim]", justify="right")
    for row in grid.rows:
        table.add_row(escape(row.label), *(_rich(entry) for entry in row.entries))
    return table


def markdown(grid: Grid) -> str:
    """The table for a page of Markdown, with its caption."""
    heads = [f"{_safe(title)}<br>{budget}" for title, budget in grid.heads]
    lines = [
        f"| {' | '.join(['method', *heads])} |",
        f"|{'|'.join(['---', *['---:'] * len(heads)])}|",
    ]
    for row in grid.rows:
        cells = [_safe(row.label), *(_markdown(entry) for entry in row.entries)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", caption(grid), ""])


def _grid(experiment: str, entries: list[Entry]) -> Grid:
    problems = tuple(dict.fromkeys(entry.problem for entry in entries))
    labels = dict.fromkeys((entry.method, entry.label) for entry in entries)
    found = {(entry.method, entry.problem): entry for entry in entries}
    seeds = {
        problem: {entry.seeds for entry in entries if entry.problem == problem}
        for problem in problems
    }
    rows = []
    for method, label in labels:
        row = [found.get((method, problem)) for problem in problems]
        words = [
            None if entry is None else _shown(entry, len(seeds[entry.problem]) > 1) for entry in row
        ]
        rows.append(Row(label, tuple(words)))
    heads = [(problem.title, _budget(problem, seeds[problem])) for problem in problems]
    return Grid(experiment, problems, tuple(rows), tuple(heads))


def _shown(entry: Entry, with_seeds: bool) -> Shown:
    details = [_averaged(entry), _paper(entry), _notes(entry, with_seeds)]
    return Shown(_value(entry), tuple(line for line in details if line))


def _value(entry: Entry) -> tuple[Piece, ...]:
    if not entry.values:
        return (Piece("–" if entry.diverged else "…"),)
    quality = "test_accuracy"
    if quality not in entry.values and "test_loss" in entry.values:
        quality = "test_loss"
    words = "test loss " if quality == "test_loss" else ""
    return _piece(entry, "train_loss"), Piece(f" / {words}"), _piece(entry, quality)


def _averaged(entry: Entry) -> tuple[Piece, ...]:
    for metric, words in (
        ("average_test_accuracy", "averaged "),
        ("average_test_loss", "averaged test loss "),
    ):
        if metric in entry.values:
            return Piece(words), _piece(entry, metric)
    return ()


def _paper(entry: Entry) -> tuple[Piece, ...]:
    if not entry.in_paper:
        return ()
    budget = paper.EPOCHS[entry.problem.dataset]
    words = "paper" if budget == entry.problem.epochs else f"paper ({budget} epochs)"
    theirs = entry.paper
    numbers = "–" if theirs is None else f"{theirs.train_loss:.3f} / {theirs.test_accuracy:.2f}"
    return (Piece(f"{words} {numbers}"),)


def _notes(entry: Entry, with_seeds: bool) -> tuple[Piece, ...]:
    notes = []
    if with_seeds:
        notes.append(_several(entry.seeds, "seed"))
    if entry.diverged:
        notes.append(f"{entry.diverged} of {entry.seeds} diverged")
    if entry.unfinished:
        going = entry.unfinished + entry.diverged == entry.seeds
        at = f"epoch {entry.epoch} of {entry.problem.epochs}"
        notes.append(at if going else f"{entry.unfinished} of {entry.seeds} unfinished")
    return (Piece(", ".join(notes)),) if notes else ()


def _piece(entry: Entry, metric: str) -> Piece:
    value = entry.values.get(metric)
    return Piece("–") if value is None else Piece(_number(metric, value), metric in entry.best)


def _number(metric: str, value: Statistic) -> str:
    mean = shown(metric, value.mean)
    if value.spread is None:
        return mean
    accuracy = metric.endswith("accuracy")
    return f"{mean} ± {f'{value.spread:.2f}' if accuracy else shown_loss(value.spread, value.mean)}"


def _budget(problem: Problem, seeds: set[int]) -> str:
    words = [_several(problem.epochs, "epoch")]
    if len(seeds) == 1:
        words.append(_several(max(seeds), "seed"))
    return ", ".join(words)


def _several(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' * (count != 1)}"


def _pieces(grid: Grid) -> list[Piece]:
    entries = [entry for row in grid.rows for entry in row.entries if entry is not None]
    lines = [line for entry in entries for line in (entry.value, *entry.details)]
    return [piece for line in lines for piece in line]


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
