"""When to search, how steps are averaged, how the first trial shrinks. Numbers only."""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

from cgq.scalars import Number, choose, least

FIRST_TRIAL = 0.1  # γ starts at min(0.1, ceiling / 3)
DECAY = 0.8  # and shrinks by this factor ...
WINDOW = 20  # ... when it exceeds the mean step of as many searches
CLEAR = 4.0  # a trial is to lower the loss by so many times its noise
LIFT = 512.0  # within as much of 1 a factor needs no lift
STILL = 10  # steps without any update, until it is clear that all of it is lost
LIFT_TRIES = 5  # in a row, until it is clear that the rate is not heeded
HIGHEST = 2.0**40  # lift


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


class Lift(NamedTuple):
    """What to multiply another optimizer's rates by, so that its update shows in θ's digits.

    Where much more than the update is applied, much of it was lost in the rounding of θ. Powers of
    two round nothing. An optimizer whose update does not grow with its rate is left alone.

    >>> lift = Lift().after(factor=5000.0)
    >>> lift.lift, lift.after(factor=1.2).lift
    (4096.0, 4096.0)
    >>> for _ in range(LIFT_TRIES):
    ...     lift = lift.after(factor=5000.0)
    >>> lift.lift
    1.0
    """

    lift: float = 1.0
    lift_tries: int = 0
    still: int = 0  # steps in a row without any update; some optimizers begin with a few

    def after(self, factor: float, most: float = HIGHEST) -> Lift:
        """After a step that applied `factor` of an update made with this lift; 0: none was made.

        No lift is above `most`: for gradients that vanish no rate makes up.
        """
        if not factor:
            if self.still < STILL:
                return self._replace(still=self.still + 1)
            factor = 2.0 * LIFT  # all of it was lost
        wanted = max(self.lift * 2.0 ** round(math.log2(factor)), 1.0)
        if 1.0 / LIFT <= wanted / self.lift <= LIFT:
            return Lift(self.lift, 0)
        if self.lift_tries < LIFT_TRIES:
            possible = max(2.0 ** math.floor(math.log2(min(most, HIGHEST))), 1.0)
            return Lift(min(wanted, possible), self.lift_tries + 1)
        return Lift(1.0, self.lift_tries)
