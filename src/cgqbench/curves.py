"""Records → curves: a metric over the epochs, as mean and spread over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from cgqbench.comparison import Comparison, several
from cgqbench.records.reading import Run
from cgqbench.records.record import Line
from cgqbench.summary import counted, statistic


@dataclass(frozen=True)
class Curve:
    """Mean and spread; the first value is that of epoch 1, None where nothing was recorded."""

    mean: list[float | None]
    spread: list[float | None]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return all(value is None for value in self.mean)


def curve(runs: Sequence[Run], metric: str) -> Curve:
    """A metric over the epochs that all runs have reached.

    If every seed diverged, the curve leads to the epoch before the first of them did.
    """
    drawn = _drawn(runs)
    length = min((len(run.epochs) for run in drawn), default=0)
    points = [statistic([run.epochs[at].get(metric) for run in drawn]) for at in range(length)]
    return Curve(
        [None if point is None else point.mean for point in points],
        [None if point is None else point.spread for point in points],
    )


def seconds(runs: Sequence[Run]) -> list[float]:
    """The training seconds spent by the end of each epoch, mean over seeds; empty if unknown."""
    clocks = [epoch_seconds(run) for run in _drawn(runs)]
    reached = min((len(clock) for clock in clocks), default=0)
    total, elapsed = 0.0, []
    for epoch in range(1, reached + 1):
        found = [clock[epoch] for clock in clocks if epoch in clock]
        if len(found) < len(clocks):
            return []
        total += statistics.fmean(found)
        elapsed.append(total)
    return elapsed


def epoch_seconds(run: Run) -> dict[int, float]:
    """The training seconds of each epoch; an epoch run again after a resume counts as last run."""
    found = {line["epoch"]: line.get("train_seconds") for line in run.times}
    return {epoch: value for epoch, value in found.items() if value is not None}


def median_epoch(runs: Sequence[Run]) -> float | None:
    """The median training seconds of an epoch, over all epochs of all seeds."""
    found = [value for run in runs for value in epoch_seconds(run).values()]
    return statistics.median(found) if found else None


@dataclass(frozen=True)
class Cost:
    """What an epoch of a method takes."""

    method: str
    label: str
    """The method's, with the machine where not all ran on the same."""
    seconds: float
    ratio: float | None
    """To SGD, if that ran on the same machine."""


def costs(comparison: Comparison) -> list[Cost]:
    """The cost of each method that has times."""
    medians = {method: median_epoch(group) for method, group in comparison.methods.items()}
    times = {method: value for method, value in medians.items() if value is not None}
    machines = {method: machines_of(comparison.methods[method]) for method in times}
    apart = len({name for names in machines.values() for name in names}) > 1
    found = []
    for method, value in times.items():
        label = comparison.labels[method]
        if apart:
            label += f" ({' and '.join(machines[method])})"
        alike = len(machines[method]) == 1 and machines[method] == machines.get("sgd")
        unit = times["sgd"] if alike else None
        found.append(Cost(method, label, value, value / unit if unit else None))
    return found


def machines_of(runs: Sequence[Run]) -> list[str]:
    """The machines that runs were timed on, each once."""
    return list(dict.fromkeys(machine_of(run.header) for run in runs if run.times))


def machine_of(header: Line) -> str:
    """What a run ran on.

    >>> machine_of({"hardware": "NVIDIA H200", "device": "cuda", "threads": 1})
    'NVIDIA H200, cuda, 1 thread'
    """
    threads = header.get("threads")
    words = [header.get("hardware"), header.get("device"), threads and several(threads, "thread")]
    return ", ".join(filter(None, words)) or "unknown machine"


def _drawn(runs: Sequence[Run]) -> list[Run]:
    return counted(runs) or [run for run in runs if run.epochs]
