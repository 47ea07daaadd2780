"""When to search, how steps are averaged, how the first trial shrinks. Numbers only."""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

from cgq.rules.scalars import Number, choose, least

FIRST_TRIAL = 0.1  # γ starts at min(0.1, ceiling / 3)
DECAY = 0.8  # and shrinks by this factor ...
WINDOW = 20  # ... when it exceeds the mean step of as many searches
CLEAR = 4.0  # a trial is to lower the loss by so many times its noise


def coin(seed: int, step: int, probability: float) -> bool:
    """Whether batch number `step` is searched.

    The draw is a function of seed and step alone: it agrees on every rank, leaves the global
    generators alone, and a resumed run goes on with the draws it would have had.

    >>> sum(coin(0, step, 0.1) for step in range(10_000))
    949
    """
    if probability >= 1.0:
        return True
    digest = hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < probability * 2.0**64


def smoothed(old: float, found: Number, smoothing: float) -> Number:
    """smoothing·old + (1 - smoothing)·found; `found` alone while there is no old value (0.0).

    >>> smoothed(0.0, 0.2, 0.5), smoothed(0.4, 0.2, 0.5), smoothed(0.4, 0.2, 0.0)
    (0.2, 0.30000000000000004, 0.2)
    """
    return smoothing * old + (1.0 - smoothing) * found if old else found


class TrialDecay(NamedTuple):
    """Shrinks the first trial while it is longer than the steps found.

    >>> decay = TrialDecay()
    >>> for _ in range(WINDOW):
    ...     decay = decay.after(trial=0.1, found=0.02)
    >>> decay.scale
    0.8
    """

    scale: float = 1.0
    total: float = 0.0
    searches: int = 0

    def after(self, trial: float, found: float) -> TrialDecay:
        """The state after a search that started from `trial` and chose `found`."""
        total, searches = self.total + found, self.searches + 1
        if searches < WINDOW:
            return self._replace(total=total, searches=searches)
        return TrialDecay(self.scale * DECAY if trial > total / searches else self.scale)


def first_trial(probe: float | None, ceiling: Number) -> Number:
    """γ before it decays: `probe`, or min(0.1, ceiling / 3)."""
    return least(FIRST_TRIAL, ceiling / 3.0) if probe is None else least(probe, ceiling)


def clear_trial(trial: Number, slope: Number, noise: Number, ceiling: Number) -> Number:
    """`trial`, or as much more as it takes for the slope to stand out of the noise.

    >>> clear_trial(0.1, slope=-1.0, noise=0.01, ceiling=0.3)
    0.1
    >>> clear_trial(0.1, slope=-1.0, noise=0.05, ceiling=0.3)
    0.2
    """
    needed = least(CLEAR * noise / choose(slope < 0.0, -slope, math.inf), ceiling)
    return choose(needed > trial, needed, trial)
