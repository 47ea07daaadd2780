"""The first trial of a search: how long it is, and how it shrinks. Numbers only."""

from __future__ import annotations

import math
from typing import NamedTuple

from cgq.rules.scalars import Number, choose, least, quotient

FIRST_TRIAL = 0.1  # γ starts at min(0.1, ceiling / 3)
DECAY = 0.8  # and shrinks by this factor ...
PERIOD = 20  # ... when it exceeds the mean step of as many searches
CLEAR = 4.0  # a trial is to lower the loss by so many times its noise


class TrialDecay(NamedTuple):
    """Shrinks the first trial while it is longer than the steps found.

    >>> decay = TrialDecay()
    >>> for _ in range(PERIOD):
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
        if searches < PERIOD:
            return self._replace(total=total, searches=searches)
        return TrialDecay(self.scale * DECAY if trial > total / searches else self.scale)


def first_trial(probe: float | None, ceiling: Number) -> Number:
    """γ before it decays: `probe`, or min(0.1, ceiling / 3)."""
    return least(FIRST_TRIAL, quotient(ceiling, 3.0)) if probe is None else least(probe, ceiling)


def promising_trial(trial: Number, slope: Number, loss: Number) -> Number:
    """`trial`, or less where its slope promises more than the loss has: no loss below -φ(0).

    γ ≤ 2φ(0) / |φ'(0)|, where φ(0) > 0. A sum over a batch has a slope so steep that 0.1 would be
    orders of magnitude too long.

    >>> promising_trial(0.1, slope=-1.0, loss=1.0), promising_trial(0.1, slope=-1e4, loss=50.0)
    (0.1, 0.01)
    >>> promising_trial(0.1, slope=-1e4, loss=-50.0)
    0.1
    """
    # As a product: a quotient of infinities, or by zero, is none.
    binds = (loss > 0.0) & (-slope * trial > 2.0 * loss)
    return choose(binds, quotient(2.0 * loss, choose(slope < 0.0, -slope, 1.0)), trial)


def clear_trial(trial: Number, slope: Number, noise: Number, ceiling: Number) -> Number:
    """`trial`, or as much more as it takes for the slope to stand out of the noise.

    >>> clear_trial(0.1, slope=-1.0, noise=0.01, ceiling=0.3)
    0.1
    >>> clear_trial(0.1, slope=-1.0, noise=0.05, ceiling=0.3)
    0.2
    """
    needed = least(quotient(CLEAR * noise, choose(slope < 0.0, -slope, math.inf)), ceiling)
    return choose(needed > trial, needed, trial)
