"""The line θ + αd: the only code that moves parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cgq.rules.scalars import Number
from cgq.vectors.layout import Buffer, Layout
from cgq.vectors.workspace import Workspace


class Combination(NamedTuple):
    """kept·θ + Σ factor·vector. Of `kept` and of each factor there is one number per group."""

    kept: Sequence[Number]
    terms: Sequence[tuple[Buffer, Sequence[Number]]]


class Line:
    """Points θ + αd, always computed from a snapshot of θ, never by adding up moves.

    `at(α)` is the combination that makes the point. Without a snapshot it is one of the present
    parameters, and there is no way back. `point` is memory for an accelerator, where a point is
    computed flat: needed unless the parameters lie side by side, or may be gathered.
    """

    def __init__(
        self,
        workspace: Workspace,
        at: Callable[[Number], Combination],
        snapshot: Buffer | None = None,
        point: Buffer | None = None,
    ) -> None:
        self._layout, self._combination, self._snapshot = workspace.layout, at, snapshot
        self._own = workspace.own_memory()
        self._point = self._own or point
        self._alpha: Number = 0.0

    def move_to(self, alpha: Number) -> None:
        """Put the parameters at θ + α·d."""
        if alpha is self._alpha or (isinstance(alpha, float) and _is(self._alpha, alpha)):
            return
        combination = self._combination(alpha)
        if self._layout.on_host:
            start = self._snapshot if self._alpha else None
            _combine_on_host(self._layout, combination, start)
        else:
            self._combine_on_device(combination)
        self._alpha = alpha

    def stands_at(self, alpha: float) -> None:
        """Say what α was in the last move, now that the host knows."""
        self._alpha = alpha

    def move_back(self) -> None:
        """Put the parameters back to θ, bit for bit."""
        assert self._snapshot is not None
        self._alpha = 0.0
        if self._own is None:
            torch._foreach_copy_(self._layout.values(), self._snapshot.views)
        else:
            torch._foreach_copy_(self._own.blocks, self._snapshot.blocks)

    def _combine_on_device(self, combination: Combination) -> None:
        values = self._layout.values()
        start = self._snapshot or self._own or self._layout.gathered(values)
        point = self._point or start
        _combine_on_device(self._layout, combination, start, point)
        if self._own is None:
            torch._foreach_copy_(values, point.views)


def _combine_on_host(layout: Layout, combination: Combination, start: Buffer | None) -> None:
    """With few passes over memory: the parameters are changed where they are."""
    values = layout.values()
    if start is not None:
        torch._foreach_copy_(values, start.views)
    for section in layout.sections:
        thetas, kept = section.of(values), combination.kept[section.group]
        if kept != 1.0:
            torch._foreach_mul_(thetas, kept)
        for vector, factors in combination.terms:
            if factor := factors[section.group]:
                torch._foreach_add_(thetas, section.of(vector.views), alpha=factor)


def _combine_on_device(
    layout: Layout, combination: Combination, start: Buffer, point: Buffer
) -> None:
    """With few kernels, and numbers that may stay on the device."""
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
