"""Numbers → tables: rows are methods, columns are problems, and an entry is said in words.

An entry reads "train loss / test accuracy" or, for a task without one, "train loss / test loss".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cgqbench.analysis.comparison import Comparison, several
from cgqbench.analysis.summary import Entry, shown_with_spread, summary
from cgqbench.experiments import EXPERIMENTS, paper

HEADINGS = {
    "compare": "Comparison",
    **{name: experiment.title for name, experiment in EXPERIMENTS.items()},
}


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
    columns: tuple[Comparison, ...]
    rows: tuple[Row, ...]

    @property
    def heading(self) -> str:
        """What the experiment is called."""
        return HEADINGS.get(self.experiment, self.experiment)

    @property
    def heads(self) -> list[tuple[str, str]]:
        """The heading of each column: what was trained, and the epochs and seeds it had."""
        return [(column.title, column.budget) for column in self.columns]


def grids(compared: Sequence[Comparison]) -> list[Grid]:
    """A table for each experiment."""
    experiments = dict.fromkeys(one.problem.experiment for one in compared)
    return [
        _grid(experiment, [one for one in compared if one.problem.experiment == experiment])
        for experiment in experiments
    ]


def caption(grid: Grid) -> str:
    """What the numbers of a table are."""
    texts = [piece.text for piece in _pieces(grid)]
    qualities = {
        "test accuracy (%)": any(text == " / " for text in texts),
        "test loss": any("/ test loss" in text for text in texts),
    }
    quality = " or ".join(name for name, there in qualities.items() if there)
    sentences = [f"Train loss / {quality or 'test accuracy (%)'} after the last epoch"]
    if any("±" in text for text in texts):
        sentences[0] += ", mean ± standard deviation over seeds"
    if any(text.startswith("averaged") for text in texts):
        sentences.append("Averaged: the same test with the anytime average of the weights")
    if len(grid.rows) > 1:
        sentences.append(
            "Bold: the best of its column, if its seeds all finished and, where their "
            "numbers differ, are the most"
        )
    if any(text.endswith("–") for text in texts):
        sentences.append("–: diverged, or not finite")
    return ". ".join([*sentences, ""]).strip()


def _grid(experiment: str, columns: list[Comparison]) -> Grid:
    entries = [{entry.method: entry for entry in summary(column)} for column in columns]
    labels = {method: label for column in columns for method, label in column.labels.items()}
    rows = []
    for method, label in labels.items():
        row = [column.get(method) for column in entries]
        words = [
            None
            if entry is None
            else _shown(entry, len({one.seeds for one in column.values()}) > 1)
            for entry, column in zip(row, entries, strict=True)
        ]
        rows.append(Row(label, tuple(words)))
    return Grid(experiment, tuple(columns), tuple(rows))


def _shown(entry: Entry, with_seeds: bool) -> Shown:
    details = [_averaged(entry), _paper(entry), _notes(entry, with_seeds)]
    return Shown(_value(entry), tuple(line for line in details if line))


def _value(entry: Entry) -> tuple[Piece, ...]:
    if not entry.values:
        return (Piece("…" if entry.unfinished else "–"),)
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
        notes.append(several(entry.seeds, "seed"))
    if entry.diverged:
        notes.append(f"{entry.diverged} of {entry.seeds} diverged")
    if entry.unfinished:
        going = entry.unfinished + entry.diverged == entry.seeds
        at = f"epoch {entry.epoch} of {entry.problem.epochs}"
        notes.append(at if going else f"{entry.unfinished} of {entry.seeds} unfinished")
    return (Piece(", ".join(notes)),) if notes else ()


def _piece(entry: Entry, metric: str) -> Piece:
    value = entry.values.get(metric)
    return (
        Piece("–")
        if value is None
        else Piece(shown_with_spread(metric, value), metric in entry.best)
    )


def _pieces(grid: Grid) -> list[Piece]:
    entries = [entry for row in grid.rows for entry in row.entries if entry is not None]
    lines = [line for entry in entries for line in (entry.value, *entry.details)]
    return [piece for line in lines for piece in line]
