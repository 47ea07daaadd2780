"""The paper's columns when every method has done the same work."""

from __future__ import annotations

from collections.abc import Sequence

from cgqbench.analysis.comparison import Comparison, fewer_bits
from cgqbench.analysis.curves import BACKWARD, work
from cgqbench.analysis.equal_work import WINDOW, accuracy_after, averaged_after, columns
from cgqbench.analysis.measures import ACCURACY, shown_with_spread
from cgqbench.analysis.spread import Statistic
from cgqbench.analysis.summary import Entry, best_methods, summary
from cgqbench.output.results_table import BOLD, remarks
from cgqbench.output.table import Column, Span, Table, TableCell, plain_row

SHARES = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
"""Of the work that SGD does in a whole run."""


def at_equal_work(compared: Sequence[Comparison]) -> list[Table]:
    """A table for each column of the paper in which a method searches."""
    return [_table(column) for column in columns(compared)]


def _table(column: Comparison) -> Table:
    marks = [share * column.problem.epochs for share in SHARES]
    heads = [Column(f"after {mark:g}", numbers=True) for mark in marks]
    entries = summary(column)
    moments = [_moment(column, entries, mark) for mark in marks]
    rows = []
    for entry in entries:
        runs, notes = column.methods[entry.method], remarks(entry, with_seeds=False)
        seeds = TableCell((Span(str(entry.seeds)),), (notes,) if notes else ())
        (name, spent) = plain_row(entry.label, _in_epochs(work(runs)[-1]))
        rows.append((name, seeds, spent, *(moment[entry.method] for moment in moments)))
    return Table(
        ", ".join([f"{column.title}, at equal work", *fewer_bits(column.runs)]),
        (
            Column("method"),
            Column("seeds", numbers=True),
            Column("work of the run", numbers=True),
            *heads,
        ),
        tuple(rows),
        "Test accuracy (%) after the work of so many epochs of SGD. Work is passes through the "
        f"network, a backward one as {BACKWARD:g} forward ones; what an optimizer does besides is "
        f"not in it. Mean over the last {WINDOW:.0%} of a run's epochs up to there, ± standard "
        f"deviation over seeds; averaged: by the averaged weights at that moment. {BOLD}. "
        "–: it did less work, was in its first epoch, diverged, or died",
    )


def _in_epochs(work: float) -> str:
    """Whole ones but for the first few, of which a part counts."""
    return f"{work:.0f}" if work >= 10 else f"{work:.3g}"


def _moment(column: Comparison, entries: Sequence[Entry], mark: float) -> dict[str, TableCell]:
    """A cell for each method, when it has done the work of so many epochs of SGD."""
    last = {method: accuracy_after(runs, mark) for method, runs in column.methods.items()}
    mean = {method: averaged_after(runs, mark) for method, runs in column.methods.items()}
    best, best_averaged = (best_methods(ACCURACY, each, entries) for each in (last, mean))
    return {
        method: _cell(last[method], mean[method], method in best, method in best_averaged)
        for method in column.methods
    }


def _cell(
    last: Statistic | None, mean: Statistic | None, best: bool, best_averaged: bool
) -> TableCell:
    if last is None:
        return TableCell((Span("–"),))
    value = (Span(shown_with_spread(ACCURACY, last), best),)
    if mean is None:
        return TableCell(value)
    note = Span("averaged "), Span(shown_with_spread(ACCURACY, mean), best_averaged)
    return TableCell(value, (note,))
