"""How near the loss along a search line is to a parabola."""

from __future__ import annotations

import math

import numpy as np

from cgqbench.records.record import Line


def roughness(line: Line) -> float:
    """How far the loss along a line is from any parabola: 0 is a parabola, 1 is nothing like one.

    The root of the share of the variance that the best parabola leaves unexplained.

    >>> grid = [0.0, 0.1, 0.2, 0.3, 0.4]
    >>> round(roughness({"grid": grid, "losses": [(x - 0.2) ** 2 for x in grid]}), 6)
    0.0
    """
    pairs = [pair for pair in zip(line["grid"], line["losses"], strict=True) if None not in pair]
    if len(pairs) < 4:
        return math.inf
    steps, losses = np.array(pairs, dtype=float).T
    spread = float(np.square(losses - losses.mean()).sum())
    if spread == 0.0:
        return 0.0
    # Scaled to [0, 1], so that the fit is as well posed for a tiny step as for a large one.
    scaled = steps / np.abs(steps).max()
    residual = losses - np.polyval(np.polyfit(scaled, losses, 2), scaled)
    return math.sqrt(float(np.square(residual).sum()) / spread)


def vertices(line: Line) -> list[float]:
    """The least losses of the parabolas fitted to a line, as far as they lie within its grid.

    For a·α² + b·α + c with a > 0 that is c - b²/(4a), at α = -b/(2a).

    >>> vertices({"grid": [0.0, 0.5], "two_point": [1.0, -0.5, 0.2], "least_squares": None})
    [0.1375]
    """
    fits = [line[key] for key in ("two_point", "least_squares") if line[key] is not None]
    return [
        c - b * b / (4 * a)
        for a, b, c in fits
        if a > 0 and min(line["grid"]) <= -b / (2 * a) <= max(line["grid"])
    ]
