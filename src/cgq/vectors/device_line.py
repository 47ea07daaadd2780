"""The line on an accelerator: few kernels, and numbers that the host does not read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cgq.rules.scalars import Number
from cgq.vectors import one_pass
from cgq.vectors.layout import Buffer, Layout
from cgq.vectors.line import Combination, Line
from cgq.vectors.workspace import Workspace


class DeviceLine(Line):
    """A line whose points are computed flat.

    That is in the parameters' own memory if they lie side by side, else in `point`, to be copied
    from there. Without a snapshot there is no way back, and they are gathered there.
    """

    def __init__(
        self,
        workspace: Workspace,
        at: Callable[[Number], Combination],
        snapshot: Buffer | None = None,
        point: Buffer | None = None,
    ) -> None:
        self._own, layout = workspace.own_memory(), workspace.layout
        self._point = self._own or point or layout.empty()
        if snapshot is None and self._own is None:
            torch._foreach_copy_(self._point.views, layout.values())
        super().__init__(layout, at, snapshot or self._point)

    def move_to(self, alpha: Number) -> None:
        if alpha is self._alpha or (isinstance(alpha, float) and _is(self._alpha, alpha)):
            return
        _combine(self._layout, self._at(alpha), self._snapshot, self._point)
        if self._own is None:
            torch._foreach_copy_(self._layout.values(), self._point.views)
        self._alpha = alpha

    def stands_at(self, alpha: Number) -> None:
        """Say what α was in the last move: now the host knows, or the line was not asked to."""
        self._alpha = alpha

    def move_back(self) -> None:
        if self._own is None:
            super().move_back()
        else:
            torch._foreach_copy_(self._own.blocks, self._snapshot.blocks)
            self._alpha = 0.0


def _combine(layout: Layout, combination: Combination, start: Buffer, point: Buffer) -> None:
    at_once = one_pass.serves(layout) and len(combination.terms) <= 2
    for index, span in enumerate(layout.spans):
        out, theta = point.parts[index], start.parts[index]
        if at_once:
            kept, terms = combination.kept[span.group], combination.terms
            one_pass.combine(
                out,
                theta,
                None if _is(kept, 1.0) else kept,
                [
                    (vector.parts[index], factors[span.group])
                    for vector, factors in terms
                    if not _is(factors[span.group], 0.0)
                ],
            )
            continue
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
