"""The line θ + αd: its slope and length, and the only code that moves parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cgq.flat import Vector
from cgq.memory import Memory, Residual
from cgq.scalars import Number


class Shape(NamedTuple):
    """How a group's part of the line is made: d = ratio·(b·p - a·g - decoupled·θ).

    `ratio` is the group's lr over the largest. The g here holds L2 decay: ∇f + coupled·θ.
    """

    ratio: float
    coupled: float
    decoupled: float


def shapes_of(groups: list[dict[str, Any]], decoupled: bool) -> tuple[list[Shape], float]:
    """Each parameter group's part in the line, and the ceiling of the step along it."""
    lrs = [float(group["lr"]) for group in groups]
    ceiling = max(lrs)
    decays = [group["weight_decay"] for group in groups]
    return [
        Shape(
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

    fg: Number  # the slope's, weighted with each group's ratio
    fp: Number
    decoupled_ft: Number
    gg2: Number  # the length's, weighted with the ratio squared
    gp2: Number
    pp2: Number
    tt: Number

    def slope(self, a: Number, b: Number) -> Number:
        """φ'(0) = ∇f·d."""
        return b * self.fp - a * self.fg - self.decoupled_ft

    def squared_length(self, a: Number, b: Number) -> Number:
        """|ratio·(b·p - a·g)|²."""
        return a * a * self.gg2 - 2.0 * a * b * self.gp2 + b * b * self.pp2


def measured_geometry(
    theta: Vector,
    f: Vector,
    g: Vector,
    p: Vector,
    shapes: Sequence[Shape],
    *,
    slope: bool,
    length: bool,
) -> Geometry:
    """The products that slope or length call for; those that do not matter are 0.0 and free."""

    def inner(x: Vector, y: Vector, weights: list[float]) -> Number:
        return x.inner(y, weights) if any(weights) else 0.0

    ratios = [slope * shape.ratio for shape in shapes]
    squares = [length * shape.ratio**2 for shape in shapes]
    decoupled = [slope * shape.ratio * shape.decoupled for shape in shapes]
    return Geometry(
        fg=inner(f, g, ratios),
        fp=inner(f, p, ratios),
        decoupled_ft=inner(f, theta, decoupled),
        gg2=inner(g, g, squares),
        gp2=inner(g, p, squares),
        pp2=inner(p, p, squares),
        tt=theta @ theta if length else 0.0,
    )


class Line:
    """Points θ + αd, always computed from a snapshot of θ, never by adding up moves.

    In terms of what a failed step must leave untouched (the gradient and the remembered p):
    θ(α) = (1 - α·ratio·(a·coupled + decoupled))·θ - α·ratio·a·sign·g + α·ratio·b·p.
    """

    def __init__(
        self,
        memory: Memory,
        grads: list[Tensor],
        shapes: Sequence[Shape],
        *,
        sign: float,
        a: float,
        b: float,
    ) -> None:
        self._snapshot = memory.scratch.views
        self._thetas = memory.layout.values()
        directions = memory.direction.views
        self._parts = [
            (shapes[part.group], part.of(self._thetas), part.of(grads), part.of(directions))
            for part in memory.layout.sections
        ]
        self._sign, self._a, self._b = sign, a, b
        self._at = 0.0
        torch._foreach_copy_(self._snapshot, self._thetas)

    def move_to(self, alpha: float) -> None:
        """Put the parameters at θ + α·d."""
        if alpha == self._at:
            return
        self.move_back()
        self._at = alpha
        for shape, thetas, grads, directions in self._parts:
            step = alpha * shape.ratio
            shrink = step * (self._a * shape.coupled + shape.decoupled)
            if not step:
                continue
            if shrink:
                torch._foreach_mul_(thetas, 1.0 - shrink)
            if self._b:
                torch._foreach_add_(thetas, directions, alpha=step * self._b)
            torch._foreach_add_(thetas, grads, alpha=-step * self._a * self._sign)

    def move_back(self) -> None:
        """Put the parameters back to θ, bit for bit."""
        if self._at:
            torch._foreach_copy_(self._thetas, self._snapshot)
            self._at = 0.0


class FlatLine:
    """The same line where kernels count and not passes over memory: on an accelerator.

    Each point is computed flat, in a buffer of its own, from what `memory` holds of r and p:
    θ(α) = (1 - α·ratio·decoupled)·θ + α·ratio·(a·r + b·p). Numbers may stay on the device.
    """

    def __init__(self, memory: Memory, shapes: Sequence[Shape], *, a: Number, b: Number) -> None:
        self._memory, self._shapes = memory, shapes
        self._a, self._b = a, b
        self._at: Number = 0.0
        self._thetas = memory.layout.values()
        self._snapshot, self._point = memory.layout.buffer(), memory.layout.buffer()
        torch._foreach_copy_(self._snapshot.views, self._thetas)

    def stands_at(self, alpha: float) -> None:
        """Say what α was in the last move, now that the host knows."""
        self._at = alpha

    def move_to(self, alpha: Number) -> None:
        """Put the parameters at θ + α·d."""
        at_host = not (isinstance(alpha, Tensor) or isinstance(self._at, Tensor))
        if at_host and alpha == self._at:
            return
        self._at = alpha
        memory = self._memory
        for run, theta, point, r, p in zip(
            memory.layout.runs,
            self._snapshot.parts,
            self._point.parts,
            memory.scratch.parts,
            memory.direction.parts,
            strict=True,
        ):
            shape = self._shapes[run.group]
            step = alpha * shape.ratio
            if shape.decoupled:
                theta = torch.mul(theta, _factor(1.0 - step * shape.decoupled, point), out=point)
            torch.addcmul(theta, r, _factor(step * self._a, point), out=point)
            torch.addcmul(point, p, _factor(step * self._b, point), out=point)
        torch._foreach_copy_(self._thetas, self._point.views)

    def move_back(self) -> None:
        """Put the parameters back to θ, bit for bit."""
        torch._foreach_copy_(self._thetas, self._snapshot.views)
        self._at = 0.0


def _factor(number: Number, like: Tensor) -> Tensor:
    if isinstance(number, Tensor):
        return number.to(like)
    return torch.full((), number, dtype=like.dtype, device=like.device)


def drift(
    memory: Memory,
    new: Residual,
    shapes: Sequence[Shape],
    alpha: Number,
    beta: Number,
    *,
    nesterov: bool,
) -> None:
    """θ ← (1 - α·decoupled)·θ + α·p, or α·(r + βp) in Nesterov's form: a step without a search.

    `memory` has already taken in the new residual. Works with numbers that stay on the device.
    """
    values = memory.layout.values()
    residuals, scale = new.tensors, new.scale
    if memory.residual is not None:
        residuals, scale = memory.residual.views, 1.0
    for part in memory.layout.sections:
        shape = shapes[part.group]
        if not shape.ratio:
            continue
        thetas, directions = part.of(values), part.of(memory.direction.views)
        step = alpha * shape.ratio
        if shape.decoupled:
            torch._foreach_mul_(thetas, _there(1.0 - step * shape.decoupled, part.device))
        if nesterov:
            _add(thetas, part.of(residuals), _there(step * scale, part.device))
            _add(thetas, directions, _there(step * beta, part.device))
        else:
            _add(thetas, directions, _there(step, part.device))


def _there(number: Number, device: torch.device) -> Number:
    return number.to(device) if isinstance(number, Tensor) else number


def _add(thetas: list[Tensor], moves: list[Tensor], factor: Number) -> None:
    if isinstance(factor, Tensor):  # as `alpha` a tensor would have to be read by the host
        torch._foreach_add_(thetas, torch._foreach_mul(moves, factor))
    else:
        torch._foreach_add_(thetas, moves, alpha=factor)
