"""How each group takes part in the line: its points, and slope and length by inner products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cgq.rules.scalars import Number, times
from cgq.vectors.layout import Buffer
from cgq.vectors.line import Combination
from cgq.vectors.products import Vector


class GroupShare(NamedTuple):
    """How a group's part of the line is made: d = ratio·(b·p - a·g - decoupled·θ).

    `ratio` is the group's lr over the largest. The g here holds L2 decay: ∇f + coupled·θ.
    """

    ratio: float
    coupled: float
    decoupled: float


def group_shares(groups: list[dict[str, Any]], decoupled: bool) -> tuple[list[GroupShare], float]:
    """Each parameter group's share in the line, and the ceiling of the step along it."""
    lrs = [float(group["lr"]) for group in groups]
    ceiling = max(lrs)
    decays = [group["weight_decay"] for group in groups]
    return [
        GroupShare(
            ratio=1.0 if lr == ceiling else lr / ceiling,  # of infinities too
            coupled=0.0 if decoupled else decay,
            decoupled=decay if decoupled else 0.0,
        )
        for lr, decay in zip(lrs, decays, strict=True)
    ], ceiling


class Geometry(NamedTuple):
    """The inner products from which slope and length follow for any a and b.

    f is ∇f, the gradient of what φ measures; g = f + coupled·θ.
    """

    fg: Number = 0.0  # the slope's, weighted with each group's ratio
    fp: Number = 0.0
    decoupled_ft: Number = 0.0
    gg2: Number = 0.0  # the length's, weighted with the ratio squared
    gp2: Number = 0.0
    pp2: Number = 0.0
    tt: Number = 0.0

    def slope(self, a: Number, b: Number) -> Number:
        """φ'(0) = ∇f·d."""
        return b * self.fp - a * self.fg - self.decoupled_ft

    def squared_length(self, a: Number, b: Number) -> Number:
        """|ratio·(b·p - a·g)|²."""
        return a * a * self.gg2 - 2.0 * a * b * self.gp2 + b * b * self.pp2


def measured_geometry(
    theta: Vector,
    f: Vector | None,
    g: Vector,
    p: Vector,
    shares: Sequence[GroupShare],
    *,
    slope: bool,
    length: bool,
) -> Geometry:
    """The products that slope or length call for; those that do not matter are 0.0 and free.

    Without f they are made of g and θ.
    """

    def inner(x: Vector, y: Vector, weights: list[float]) -> Number:
        return x.inner(y, weights) if any(weights) else 0.0

    def inner_f(x: Vector, weights: list[float]) -> Number:
        if f is not None:
            return inner(f, x, weights)
        coupled = [weight * share.coupled for weight, share in zip(weights, shares, strict=True)]
        return inner(g, x, weights) - inner(theta, x, coupled)

    ratios = [slope * share.ratio for share in shares]
    squares = [length * share.ratio**2 for share in shares]
    decoupled = [slope * share.ratio * share.decoupled for share in shares]
    return Geometry(
        fg=inner_f(g, ratios),
        fp=inner_f(p, ratios),
        decoupled_ft=inner_f(theta, decoupled),
        gg2=inner(g, g, squares),
        gp2=inner(g, p, squares),
        pp2=inner(p, p, squares),
        tt=theta @ theta if length else 0.0,
    )


def along(
    shares: Sequence[GroupShare], *terms: tuple[Buffer, Number], coupled: Number = 0.0
) -> Callable[[Number], Combination]:
    """θ(α) = (1 - α·ratio·(coupled·decay + decoupled))·θ + α·ratio·Σ factor·vector, by groups."""
    decays = [coupled * share.coupled + share.decoupled for share in shares]

    def at(alpha: Number) -> Combination:
        steps = [times(share.ratio, alpha) for share in shares]
        return Combination(
            [1.0 - s * decay if decay else 1.0 for s, decay in zip(steps, decays, strict=True)],
            [(vector, [times(factor, step) for step in steps]) for vector, factor in terms],
        )

    return at
