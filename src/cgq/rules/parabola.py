"""The parabola q(α) = Aα² + Bα + C that stands in for the loss along the step. Numbers only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from cgq.rules.scalars import Number


class Parabola(NamedTuple):
    """q(α) = a·α² + b·α + c.

    >>> q = Parabola(a=1.0, b=-4.0, c=5.0)
    >>> q(0.0), q.minimiser, q(q.minimiser), q.curvature
    (5.0, 2.0, 1.0, 2.0)
    """

    a: float
    b: float
    c: float

    def __call__(self, alpha: float) -> float:
        return (self.a * alpha + self.b) * alpha + self.c

    @property
    def minimiser(self) -> float:
        """The step -b / 2a, where q is least if a > 0."""
        return -self.b / (2.0 * self.a)

    @property
    def curvature(self) -> float:
        """q'' = 2a."""
        return 2.0 * self.a

    @property
    def is_finite(self) -> bool:
        return all(map(math.isfinite, self))

    def is_level(self, alpha: Number, noise: Number) -> Number:
        """Whether both a·α² and b·α are less than `noise`: then q says nothing."""
        return (abs(self.a) * alpha * alpha < noise) & (abs(self.b) * alpha < noise)


class Fit(Protocol):
    """Makes a parabola from φ(0), φ'(0) and the trials (steps[k], losses[k]), newest last."""

    def __call__(
        self, loss: float, slope: float, steps: Sequence[float], losses: Sequence[float]
    ) -> Parabola: ...


def two_point(
    loss: float, slope: float, steps: Sequence[float], losses: Sequence[float]
) -> Parabola:
    """The parabola with q(0) = φ(0), q'(0) = φ'(0) and q(x) = φ(x) at the newest trial x.

    A = (φ(x) - φ(0) - φ'(0)·x) / x²,  B = φ'(0),  C = φ(0)

    >>> two_point(5.0, -4.0, [1.0], [2.0])
    Parabola(a=1.0, b=-4.0, c=5.0)
    """
    x = steps[-1]
    # Divided twice: x² underflows for a step that x itself still represents.
    return Parabola(((losses[-1] - loss) / x - slope) / x, slope, loss)


def least_squares(
    loss: float,
    slope: float,
    steps: Sequence[float],
    losses: Sequence[float],
    *,
    with_slope: bool = True,
) -> Parabola:
    """The parabola nearest to φ(0), φ'(0) and every trial: ω = pinv(X)·Y.

    X has the rows (0, 1, 0) → φ'(0), (0, 0, 1) → φ(0) and (x², x, 1) → φ(x) for each trial x.
    `functools.partial(least_squares, with_slope=False)` drops the first row: the paper's remedy
    for landscapes so rough that the slope at one point says little. With one trial that leaves
    more unknowns than data, and of all parabolas the one nearest to flat is taken.

    >>> q = least_squares(5.0, -4.0, [1.0, 3.0], [2.0, 2.0])
    >>> [round(value, 9) for value in q]
    [1.0, -4.0, 5.0]
    """
    if with_slope and len(steps) == 1:
        return two_point(loss, slope, steps, losses)  # as many data as unknowns
    # What is solved for is the departure from φ(0) + φ'(0)·x, in units that keep every column and
    # row of X near 1: tiny or huge steps would drown some of them in rounding.
    along = slope if with_slope else 0.0
    unit = max(steps)
    slope_unit = max(unit, 1.0) if with_slope else unit
    rows = [[0.0, 0.0, 1.0]] + [[(x / unit) ** 2, x / slope_unit, 1.0] for x in steps]
    values = [0.0] + [y - loss - along * x for x, y in zip(steps, losses, strict=True)]
    if with_slope:
        rows.append([0.0, 1.0 / slope_unit, 0.0])
        values.append(0.0)
    x = torch.tensor(rows, dtype=torch.float64, device="cpu")
    y = torch.tensor(values, dtype=torch.float64, device="cpu")
    if not (x.isfinite().all() and y.isfinite().all()):
        return Parabola(math.nan, math.nan, math.nan)
    a, b, c = (torch.linalg.pinv(x) @ y).tolist()
    return Parabola(a / unit / unit, along + b / slope_unit, loss + c)
