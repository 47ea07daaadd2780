"""The line on an accelerator: few kernels, and numbers that the host does not read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

    def _return(self) -> None:
        if self._own is None:
            super()._return()
        else:
            torch._foreach_copy_(self._own.blocks, self._snapshot.blocks)


def _combine(layout: Layout, combination: Combination, start: Buffer, point: Buffer) -> None:
    move = one_pass.combine if one_pass.serves(layout) else _in_several_passes
    for index, span in enumerate(layout.spans):
        kept = combination.kept[span.group]
        terms = [
            (vector.parts[index], factors[span.group])
            for vector, factors in combination.terms
            if not _is(factors[span.group], 0.0)
        ]
        move(point.parts[index], start.parts[index], None if _is(kept, 1.0) else kept, terms)


def _in_several_passes(
    out: Tensor, theta: Tensor, kept: Number | None, terms: Sequence[tuple[Tensor, Number]]
) -> None:
    wide = torch.promote_types(out.dtype, torch.float32)
    total = out if wide == out.dtype else out.to(wide)  # so that it is rounded once
    if kept is not None:
        theta = torch.mul(theta.to(wide), _factor(kept, total), out=total)
    for vector, factor in terms:
        theta = torch.addcmul(theta.to(wide), vector.to(wide), _factor(factor, total), out=total)
    if theta is not out:
        out.copy_(theta)


def _is(number: Number, value: float) -> bool:
    """Whether it is this number, as far as the host knows."""
    return isinstance(number, float) and number == value


def _factor(number: Number, like: Tensor) -> Tensor:
    if isinstance(number, Tensor):
        return number.to(like)
    return torch.full((), number, dtype=like.dtype, device=like.device)
