"""A value over seeds: its mean, and how far the seeds lie from it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation over seeds; one seed has no spread."""

    mean: float
    spread: float | None
    count: int


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
