"""Lines and products on an accelerator: few kernels, and numbers that the host does not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cgq.rules.scalars import Number, scalar_dtype, times
from cgq.vectors.layout import Buffer, Layout
from cgq.vectors.line import Combination, Line
from cgq.vectors.products import Vector, dot, widened
from cgq.vectors.workspace import Workspace


class DeviceVector(Vector):
    """A vector whose products are 0-dim tensors."""

    def length(self) -> Number:
        """The root of the product with itself.

        It costs less than the product where one kernel gives all of it. It is then of the vector's
        own dtype, or of float32 if that is wider.
        """
        if len(self.layout.spans) > 1 or self.layout.reduce is not None:
            return super().length()
        (part,) = self.parts()
        return times(abs(self.scale), _length(part))

    def _dots_with(self, other: Vector) -> list[Any]:
        device, dtype = self.layout.device, scalar_dtype(self.layout.device)
        if other is self:  # whose norm the host launches faster than a product
            return [_length(a).to(device, dtype).square() for a in self.parts()]
        pairs = zip(self.parts(), other.parts(), strict=True)
        return [dot(a, b).to(device, dtype) for a, b in pairs]

    def _total(self, dots: list[Any]) -> Number:
        return torch.stack(dots).sum() if len(dots) > 1 else dots[0]


def _length(a: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(a, dtype=widened(a.dtype))
    return length


class DeviceLine(Line):
    """A line whose points are computed flat.

    That is in the parameters' own memory if they lie side by side, else in `point`, to be copied
    from there. Without a snapshot there is no way back.
    """

    def __init__(
        self,
        workspace: Workspace,
        at: Callable[[Number], Combination],
        snapshot: Buffer | None = None,
        point: Buffer | None = None,
    ) -> None:
        self._own = workspace.own_memory()
        start = snapshot or self._own or workspace.layout.gathered(workspace.layout.values())
        super().__init__(workspace.layout, at, start)
        self._point = self._own or point or (workspace.layout.empty() if snapshot else start)

    def move_to(self, alpha: Number) -> None:
        if alpha is self._alpha or (isinstance(alpha, float) and _is(self._alpha, alpha)):
            return
        _combine(self._layout, self._at(alpha), self._snapshot, self._point)
        if self._own is None:
            torch._foreach_copy_(self._layout.values(), self._point.views)
        self._alpha = alpha

    def stands_at(self, alpha: float) -> None:
        """Say what α was in the last move, now that the host knows."""
        self._alpha = alpha

    def move_back(self) -> None:
        if self._own is None:
            super().move_back()
        else:
            torch._foreach_copy_(self._own.blocks, self._snapshot.blocks)
            self._alpha = 0.0


def _combine(layout: Layout, combination: Combination, start: Buffer, point: Buffer) -> None:
    for index, span in enumerate(layout.spans):
        out, theta = point.parts[index], start.parts[index]
        wide = torch.promote_types(out.dtype, torch.float32)
        total = out if wide == out.dtype else out.to(wide)  # so that it is rounded once
        if not _is(combination.kept[span.group], 1.0):
            kept = _factor(combination.kept[span.group], total)
            theta = torch.mul(theta.to(wide), kept, out=total)
        for vector, factors in combination.terms:
            if not _is(factors[span.group], 0.0):
                factor = _factor(factors[span.group], total)
                moved = vector.parts[index].to(wide)
                theta = torch.addcmul(theta.to(wide), moved, factor, out=total)
        if theta is not out:
            out.copy_(theta)


def _is(number: Number, value: float) -> bool:
    """Whether it is this number, as far as the host knows."""
    return isinstance(number, float) and number == value


def _factor(number: Number, like: Tensor) -> Tensor:
    if isinstance(number, Tensor):
        return number.to(like)
    return torch.full((), number, dtype=like.dtype, device=like.device)
