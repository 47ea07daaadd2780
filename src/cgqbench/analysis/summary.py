"""Comparisons → numbers: each method's last epoch, as mean and spread over its seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cgqbench.analysis.comparison import Comparison
from cgqbench.experiments import paper
from cgqbench.records.problem import Problem
from cgqbench.records.reading import Run

METRICS = (
    "train_loss",
    "test_loss",
    "test_accuracy",
    "average_test_loss",
    "average_test_accuracy",
)


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation over seeds; one seed has no spread."""

    mean: float
    spread: float | None
    count: int


@dataclass(frozen=True)
class Entry:
    """One method on one problem, after the last epoch."""

    problem: Problem
    method: str
    label: str
    seeds: int
    diverged: int
    unfinished: int
    epoch: int
    """The epoch the values are of: the last one, or the last that all unfinished runs share."""
    values: dict[str, Statistic]
    """By metric; a metric that was not recorded is left out."""
    best: frozenset[str] = frozenset()
    """The metrics in which, as far as shown, no complete entry with as many seeds is better.

    Only of those with the most seeds, and if they are several: fewer are a first look, though
    one that is better takes the mark away."""

    @property
    def complete(self) -> bool:
        """Whether every seed ran to its end, so that the entry may be called the best."""
        return self.diverged == self.unfinished == 0

    @property
    def in_paper(self) -> bool:
        """Whether the paper has this entry; `paper` is then None if it did not converge there."""
        return (self.problem.dataset, self.problem.network, self.method) in paper.RESULTS

    @property
    def paper(self) -> paper.Result | None:
        """The paper's own numbers."""
        key = (self.problem.dataset, self.problem.network, self.method)
        return paper.RESULTS.get(key)


def summary(comparison: Comparison) -> list[Entry]:
    """An entry for each method, in the order of the tables."""
    column = [
        _entry(comparison.problem, method, comparison.labels[method], group)
        for method, group in comparison.methods.items()
    ]
    return [replace(entry, best=_best(entry, column)) for entry in column]


def counted(runs: Sequence[Run]) -> list[Run]:
    """Those a mean is taken over: the finished ones or, before there are any, the running ones."""
    sound = [run for run in runs if run.epochs and not run.diverged]
    return [run for run in sound if run.end is not None] or sound


def statistic(values: Sequence[float | None]) -> Statistic | None:
    """Mean and sample standard deviation of the values there are.

    >>> statistic([1.0, 2.0, None, 3.0])
    Statistic(mean=2.0, spread=1.0, count=3)
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    spread = statistics.stdev(known) if len(known) > 1 else None
    return Statistic(statistics.fmean(known), spread, len(known))


def shown_loss(value: float) -> str:
    """A loss to three significant digits; from 1 on to four, for there it falls by small shares.

    >>> shown_loss(0.0024049), shown_loss(1.45)
    ('0.00240', '1.450')
    """
    size = abs(value)
    if size != 0 and not 1e-5 <= size < 1e6:
        return f"{value:.2e}"
    decimals = 2 if size == 0 else max(0, 2 + (size >= 1) - math.floor(math.log10(size)))
    return f"{value:.{decimals}f}"


def shown(metric: str, value: float) -> str:
    """A value as tables show it: losses to three or four digits, accuracies to two decimals."""
    return f"{value:.2f}" if metric.endswith("accuracy") else shown_loss(value)


def shown_with_spread(metric: str, value: Statistic) -> str:
    """Mean ± spread, both to the decimals of the mean.

    >>> shown_with_spread("train_loss", Statistic(0.0204, 0.0031, 3))
    '0.0204 ± 0.0031'
    >>> shown_with_spread("train_loss", Statistic(0.0204, 0.00001, 3))
    '0.0204 ± <0.0001'
    """
    mean = shown(metric, value.mean)
    if value.spread is None:
        return mean
    if "e" in mean:
        return f"{mean} ± {value.spread:.2e}"
    decimals = len(mean.partition(".")[2])
    least = 10.0**-decimals
    if 0 < value.spread < least / 2:
        return f"{mean} ± <{least:.{decimals}f}"
    return f"{mean} ± {value.spread:.{decimals}f}"


def _entry(problem: Problem, method: str, label: str, runs: list[Run]) -> Entry:
    rows = counted(runs)
    last = min((len(run.epochs) for run in rows), default=0)
    found = {
        metric: statistic([run.epochs[last - 1].get(metric) for run in rows]) for metric in METRICS
    }
    return Entry(
        problem,
        method,
        label,
        seeds=len(runs),
        diverged=sum(run.diverged for run in runs),
        unfinished=sum(run.end is None for run in runs),
        epoch=last,
        values={metric: value for metric, value in found.items() if value is not None},
    )


def _best(entry: Entry, column: list[Entry]) -> frozenset[str]:
    complete = [rival for rival in column if rival.complete]
    most = max((rival.seeds for rival in complete), default=0)
    rivals = [rival for rival in complete if rival.seeds == most]
    if entry not in rivals or len(rivals) == 1:
        return frozenset()
    best = []
    for metric, value in entry.values.items():
        means = [rival.values[metric].mean for rival in complete if metric in rival.values]
        winner = max(means) if metric.endswith("accuracy") else min(means)
        if shown(metric, value.mean) == shown(metric, winner):
            best.append(metric)
    return frozenset(best)
