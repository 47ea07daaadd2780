"""When to stop: a moment that all processes share, and whether another epoch fits before it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

# An epoch begins only if this many times the last one fits: it may take a little longer, and one
# that is broken off is lost.
MARGIN = 1.1


class TimeUpError(Exception):
    """The deadline has come within an epoch."""


@dataclass(frozen=True)
class Deadline:
    """A moment of the wall clock; by default there is none.

    The monotonic clock does not jump, but each machine of a cluster has another.
    """

    moment: float = math.inf

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """So many seconds from now."""
        return cls(time.time() + seconds)

    @property
    def left(self) -> float:
        """The seconds left; below zero once the moment is past."""
        return self.moment - time.time()

    @property
    def past(self) -> bool:
        """Whether the time is up."""
        return self.left <= 0

    def sooner(self, seconds: float) -> Deadline:
        """One that leaves so many seconds for what comes after.

        >>> Deadline(100.0).sooner(2.5), Deadline().sooner(1e9) == NEVER
        (Deadline(moment=97.5), True)
        """
        return Deadline(self.moment - seconds)

    def fits(self, epoch: float | None) -> bool:
        """Whether an epoch like the last one, which took so many seconds, ends in time.

        Of one whose length nobody knows yet: whether it can begin.

        >>> Deadline().fits(1e9)
        True
        >>> soon = Deadline.after(60)
        >>> soon.fits(None), soon.fits(50), soon.fits(58)
        (True, True, False)
        """
        return self.left > MARGIN * (epoch or 0.0)


NEVER = Deadline()
