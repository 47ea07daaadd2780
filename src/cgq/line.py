"""The line θ + αd: the only code that moves parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cgq.flat import Buffer
from cgq.geometry import Shape
from cgq.memory import Residual, Vectors
from cgq.scalars import Number, times


class Line:
    """Points θ + αd, always computed from a snapshot of θ, never by adding up moves.

    In terms of what a failed step must leave untouched (the gradient and the remembered p):
    θ(α) = (1 - α·ratio·(a·coupled + decoupled))·θ - α·ratio·a·sign·g + α·ratio·b·p.
    """

    def __init__(
        self,
        memory: Vectors,
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
            if self._a:
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

    def __init__(
        self, memory: Vectors, snapshot: Buffer, shapes: Sequence[Shape], *, a: Number, b: Number
    ) -> None:
        self._memory, self._snapshot, self._shapes = memory, snapshot, shapes
        self._a, self._b = a, b
        self._at: Number = 0.0
        self._thetas = memory.layout.values()
        self._joined = memory.joined()
        self._point = self._joined or memory.layout.empty()

    def stands_at(self, alpha: float) -> None:
        """Say what α was in the last move, now that the host knows."""
        self._at = alpha

    def move_to(self, alpha: Number) -> None:
        """Put the parameters at θ + α·d."""
        on_host = not (isinstance(alpha, Tensor) or isinstance(self._at, Tensor))
        if alpha is self._at or (on_host and alpha == self._at):
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
            kept = 1.0 - step * shape.decoupled if shape.decoupled else 1.0
            moves = [(p, step * self._b)]
            if isinstance(self._a, Tensor) or self._a:
                moves.insert(0, (r, step * self._a))
            _combine(point, theta, kept, *moves)
        if self._joined is None:
            torch._foreach_copy_(self._thetas, self._point.views)

    def move_back(self) -> None:
        """Put the parameters back to θ, bit for bit."""
        self._at = 0.0
        if self._joined is None:
            torch._foreach_copy_(self._thetas, self._snapshot.views)
        else:
            torch._foreach_copy_(self._joined.blocks, self._snapshot.blocks)


def _combine(out: Tensor, start: Tensor, kept: Number, *moves: tuple[Tensor, Number]) -> None:
    """out ← kept·start + Σ vector·factor over the moves, rounded once to a narrow dtype."""
    wide = torch.promote_types(out.dtype, torch.float32)
    total = out
    if wide != out.dtype:
        total = start.to(wide)
        start = total
    if isinstance(kept, Tensor) or kept != 1.0:
        start = torch.mul(start, _factor(kept, total), out=total)
    for vector, factor in moves:
        start = torch.addcmul(start, vector.to(wide), _factor(factor, total), out=total)
    if total is not out:
        out.copy_(total)


def _factor(number: Number, like: Tensor) -> Tensor:
    if isinstance(number, Tensor):
        return number.to(like)
    return torch.full((), number, dtype=like.dtype, device=like.device)


def drift(
    memory: Vectors,
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
    if not memory.layout.on_host:
        _drift_flat(memory, values, shapes, alpha, beta, nesterov)
        return
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
            torch._foreach_mul_(thetas, 1.0 - step * shape.decoupled)
        if nesterov:
            torch._foreach_add_(thetas, part.of(residuals), alpha=step * scale)
            torch._foreach_add_(thetas, directions, alpha=step * beta)
        else:
            torch._foreach_add_(thetas, directions, alpha=step)


def _drift_flat(
    memory: Vectors,
    values: list[Tensor],
    shapes: Sequence[Shape],
    alpha: Number,
    beta: Number,
    nesterov: bool,
) -> None:
    """The same where kernels count. What was left out is r = 0 here."""
    joined, start = memory.joined(), memory.start
    if start is None:
        moved = start = joined or memory.layout.gathered(values)
    else:
        moved = joined or memory.direction  # which is not needed any more
    residual = memory.scratch if memory.residual is None else memory.residual
    for run, point, theta, r, p in zip(
        memory.layout.runs,
        moved.parts,
        start.parts,
        residual.parts,
        memory.direction.parts,
        strict=True,
    ):
        shape = shapes[run.group]
        step = times(shape.ratio, alpha)
        kept = 1.0 - step * shape.decoupled if shape.decoupled else 1.0
        moves = [(r, step), (p, step * beta)] if nesterov else [(p, step)]
        _combine(point, theta, kept, *moves)
    if joined is None:
        torch._foreach_copy_(values, moved.views)
