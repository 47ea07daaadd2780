"""Records → curves: a metric over the epochs, as mean and spread over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from cgqbench.analysis.spread import statistic
from cgqbench.analysis.summary import counted
from cgqbench.records.reading import Run

BACKWARD = 2.0
"""A backward pass, in forward ones: two products of matrices where a forward pass has one."""


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

    If every seed diverged, the curve leads to where the first of them did.
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


def work(runs: Sequence[Run]) -> list[float]:
    """The work done by the end of each epoch, in epochs of one pass a step; mean over seeds.

    It counts passes alone, a backward one as two forward ones: a step of P passes, of which each
    but the first is forward only, does the work of (P + 2) / 3 steps of SGD. Empty if unknown.
    """
    drawn = _drawn(runs)
    total, done = 0.0, []
    for rows in zip(*(run.epochs for run in drawn), strict=False):
        found = [row["passes"] for row in rows if row.get("passes") is not None]
        if len(found) < len(drawn):
            return []
        total += (statistics.fmean(found) + BACKWARD) / (1.0 + BACKWARD)
        done.append(total)
    return done


def epoch_seconds(run: Run) -> dict[int, float]:
    """The training seconds of each epoch; an epoch run again after a resume counts as last run."""
    found = {line["epoch"]: line.get("train_seconds") for line in run.times}
    return {epoch: value for epoch, value in found.items() if value is not None}


def _drawn(runs: Sequence[Run]) -> list[Run]:
    return counted(runs) or [run for run in runs if run.epochs]
