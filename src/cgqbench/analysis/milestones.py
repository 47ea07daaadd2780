"""How soon a run is where another was: steps until the train loss has come down to a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cgqbench.analysis.standings import CONSTANT, Standing
from cgqbench.analysis.summary import counted
from cgqbench.records.reading import Run
from cgqbench.records.train_curve import train_curve

AT = 300
"""The step at which the tuned reference sets the level."""
WINDOW = 50
"""The train loss at a step is the mean over so many steps up to it, in whole stretches."""


@dataclass(frozen=True)
class Milestone:
    """The train loss of AdamW at its best constant rate, early in the run."""

    step: int
    loss: float
    steps: dict[str, float | None]
    """By method: the step at which it was there too; None: never, or a seed died."""


def milestone(standing: Standing) -> Milestone | None:
    """A task's, if its records hold train losses; a shorter run has its last step for it."""
    reference = standing.tuned.get(CONSTANT)
    line = smoothed(reference.runs) if reference is not None else ([], [])
    if not line[0]:
        return None
    at = min(AT, line[0][-1])
    level = float(np.interp(at, *line))
    steps: dict[str, float | None] = {}
    for name, result in standing.results.items():
        curve = smoothed(result.runs)
        if result.died:
            steps[name] = None
        elif curve[0]:
            steps[name] = reached(*curve, level)
    return Milestone(at, level, steps)


def smoothed(runs: Sequence[Run]) -> tuple[list[int], list[float]]:
    """Steps, and at each the mean train loss of the last `WINDOW` steps, over all seeds.

    It ends where a loss was not finite. Empty if any of the runs has no losses within its epochs.
    """
    curves = [train_curve(run) for run in counted(runs)]
    if not curves or not all(steps for steps, _ in curves):
        return [], []
    ends = min((steps for steps, _ in curves), key=len)
    stretches = np.diff([0, *ends])
    columns = [losses[: len(ends)] for _, losses in curves]
    rows = [[np.nan if loss is None else loss for loss in column] for column in columns]
    losses = np.mean(np.array(rows, dtype=np.float64), axis=0)
    finite = np.isfinite(losses)
    length = len(ends) if finite.all() else int(np.argmin(finite))
    means = []
    for place in range(length):
        first = np.searchsorted(ends, ends[place] - WINDOW, side="right")
        weights = stretches[first : place + 1]
        means.append(float(np.average(losses[first : place + 1], weights=weights)))
    return ends[:length], means


def reached(steps: Sequence[int], losses: Sequence[float], level: float) -> float | None:
    """The step at which losses first come down to a level, between two known ones on a line.

    >>> reached([10, 20, 30], [4.0, 2.0, 1.0], 3.0)
    15.0
    >>> reached([10, 20, 30], [4.0, 2.0, 1.0], 0.5) is None
    True
    """
    for place, loss in enumerate(losses):
        if loss <= level:
            if place == 0:
                return float(steps[0])
            before, width = losses[place - 1], steps[place] - steps[place - 1]
            return steps[place - 1] + width * (before - level) / (before - loss)
    return None
