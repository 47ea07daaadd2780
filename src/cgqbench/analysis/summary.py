"""Comparisons → numbers: each method's last epoch, as mean and spread over its seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cgqbench.analysis.chance import dead
from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.measures import ACCURACY, LOSS, averaged, best, shown
from cgqbench.analysis.spread import Statistic, statistic
from cgqbench.records.problem import Problem
from cgqbench.records.reading import Run

METRICS = ("train_loss", LOSS, ACCURACY, averaged(LOSS), averaged(ACCURACY))


@dataclass(frozen=True)
class Entry:
    """One method on one problem, after the last epoch."""

    problem: Problem
    method: str
    label: str
    seeds: int
    diverged: int
    died: int
    """Those that diverged, and those that only guessed in the end."""
    unfinished: int
    epoch: int
    """The epoch the values are of: the last one, or the last that all unfinished runs share."""
    values: dict[str, Statistic]
    """By metric; a metric that was not recorded is left out."""
    best: frozenset[str] = frozenset()
    """The metrics in which it may be called the best: `best_methods`."""

    @property
    def complete(self) -> bool:
        """Whether every seed ran to its end, so that the entry may be called the best."""
        return self.diverged == self.unfinished == 0


def summary(comparison: Comparison) -> list[Entry]:
    """An entry for each method, in the order of the tables."""
    column = [
        _entry(comparison.problem, method, comparison.labels[method], group)
        for method, group in comparison.methods.items()
    ]
    marks = {
        metric: best_methods(metric, {one.method: one.values.get(metric) for one in column}, column)
        for metric in METRICS
    }
    return [
        replace(entry, best=frozenset(each for each in METRICS if entry.method in marks[each]))
        for entry in column
    ]


def means(entries: Iterable[Entry], metric: str) -> list[float]:
    """The means of those that have the metric."""
    return [entry.values[metric].mean for entry in entries if metric in entry.values]


def best_methods(
    measure: str, values: Mapping[str, Statistic | None], column: Sequence[Entry]
) -> set[str]:
    """Those that, as far as shown, no complete entry is better than.

    Only of those with the most seeds, and if they are several: fewer are a first look, though
    one that is better takes the mark away.
    """
    complete = [entry for entry in column if entry.complete]
    most = max((entry.seeds for entry in complete), default=0)
    rivals = {entry.method for entry in complete if entry.seeds == most}
    known = {entry.method: value.mean for entry in complete if (value := values.get(entry.method))}
    if len(rivals) < 2 or not known:
        return set()
    top = shown(measure, best(measure, known.values()))
    return {method for method in rivals & known.keys() if shown(measure, known[method]) == top}


def counted(runs: Sequence[Run]) -> list[Run]:
    """Those a mean is taken over: the finished ones or, before there are any, the running ones."""
    sound = [run for run in runs if run.epochs and not run.diverged]
    return [run for run in sound if run.end is not None] or sound


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
        died=sum(map(dead, runs)),
        unfinished=sum(run.end is None for run in runs),
        epoch=last,
        values={metric: value for metric, value in found.items() if value is not None},
    )
