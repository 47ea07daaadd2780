"""The paper's columns at equal work: a step that searches has more passes than a plain one."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from cgqbench.analysis.chance import dead
from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.costs import passes
from cgqbench.analysis.curves import work
from cgqbench.analysis.measures import ACCURACY, averaged
from cgqbench.analysis.paper_columns import paper_columns
from cgqbench.analysis.spread import Statistic, statistic
from cgqbench.analysis.summary import counted
from cgqbench.records.reading import Run

WINDOW = 1 / 20
"""Of the epochs of a run; accuracies jump from one to the next, and no single one is to decide."""
ROUNDING = 1e-9


def columns(compared: Sequence[Comparison]) -> list[Comparison]:
    """The paper's columns in which a method searches, with what is beside them, passes known."""
    found = []
    for one in paper_columns(compared):
        methods = {method: group for method, group in one.methods.items() if work(group)}
        if any((passes(group) or 1.0) > 1.0 for group in methods.values()):
            found.append(replace(one, methods=methods))
    return found


def accuracy_after(runs: Sequence[Run], done: float) -> Statistic | None:
    """Over seeds, when each has done the work of so many epochs of SGD.

    Of each seed the mean over the last twentieth of its epochs up to there; None if any has not
    done as much, or all only guessed in the end.
    """
    return _over_seeds(runs, done, ACCURACY, WINDOW)


def averaged_after(runs: Sequence[Run], done: float) -> Statistic | None:
    """The same of the averaged weights at that moment; they do not jump."""
    return _over_seeds(runs, done, averaged(ACCURACY), 0.0)


def _over_seeds(runs: Sequence[Run], done: float, metric: str, window: float) -> Statistic | None:
    kept = counted(runs)
    if all(map(dead, kept)):
        return None
    values = [_after(run, done, metric, window) for run in kept]
    return None if None in values else statistic(values)


def _after(run: Run, done: float, metric: str, window: float) -> float | None:
    spent = work([run])
    if not spent or spent[-1] < done * (1 - ROUNDING):
        return None
    last = bisect_right(spent, done * (1 + ROUNDING))
    first = max(0, last - max(1, round(window * run.header["epochs"])))
    found = [row[metric] for row in run.epochs[first:last] if row.get(metric) is not None]
    return statistics.fmean(found) if found else None
