"""The paper's columns when every method has done the same work."""

from __future__ import annotations

from collections.abc import Sequence

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.curves import BACKWARD, work
from cgqbench.analysis.equal_work import WINDOW, accuracy_after, averaged_after, columns
from cgqbench.analysis.measures import ACCURACY, best, shown_with_spread
from cgqbench.analysis.spread import Statistic
from cgqbench.output.table import Column, Span, Table, TableCell, plain_row

SHARES = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
"""Of the work that SGD does in a whole run."""


def at_equal_work(compared: Sequence[Comparison]) -> list[Table]:
    """A table for each column of the paper in which a method searches."""
    return [_table(column) for column in columns(compared)]


def _table(column: Comparison) -> Table:
    marks = [share * column.problem.epochs for share in SHARES]
    heads = [Column(f"after {mark:g}", numbers=True) for mark in marks]
    groups = column.methods
    last = {
        method: [accuracy_after(runs, mark) for mark in marks] for method, runs in groups.items()
    }
    mean = {
        method: [averaged_after(runs, mark) for mark in marks] for method, runs in groups.items()
    }
    bold, bold_averaged = _best(last), _best(mean)
    rows = []
    for method, runs in groups.items():
        cells = [
            _cell(last[method][at], mean[method][at], bold[at], bold_averaged[at])
            for at in range(len(marks))
        ]
        name = plain_row(column.labels[method], len(runs), f"{work(runs)[-1]:.0f}")
        rows.append((*name, *cells))
    return Table(
        f"{column.title}, at equal work",
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
        "deviation over seeds; averaged: by the averaged weights at that moment. Bold: the best. "
        "–: it did less work",
    )


def _best(found: dict[str, list[Statistic | None]]) -> list[float | None]:
    """Of each column of numbers."""
    values = [[one.mean for one in column if one] for column in zip(*found.values(), strict=True)]
    return [best(ACCURACY, column) if column else None for column in values]


def _cell(
    last: Statistic | None, mean: Statistic | None, best: float | None, best_averaged: float | None
) -> TableCell:
    if last is None:
        return TableCell((Span("–"),))
    value = (Span(shown_with_spread(ACCURACY, last), last.mean == best),)
    if mean is None:
        return TableCell(value)
    note = Span("averaged "), Span(shown_with_spread(ACCURACY, mean), mean.mean == best_averaged)
    return TableCell(value, (note,))
