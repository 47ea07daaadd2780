"""The line θ + αd, along which parameters are moved; on an accelerator see `device_line.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from cgq.rules.scalars import Number
from cgq.vectors.layout import Buffer, Layout


class Combination(NamedTuple):
    """kept·θ + Σ factor·vector. Of `kept` and of each factor there is one number per group."""

    kept: Sequence[Number]
    terms: Sequence[tuple[Buffer, Sequence[Number]]]


def combine(layout: Layout, combination: Combination) -> None:
    """θ ← kept·θ + Σ factor·vector, where it is, with few passes over memory."""
    values = layout.values()
    for group, members in layout.sections:
        thetas, kept = [values[index] for index in members], combination.kept[group]
        if kept != 1.0:
            torch._foreach_mul_(thetas, kept)
        for vector, factors in combination.terms:
            if factor := factors[group]:
                moves = [vector.views[index] for index in members]
                torch._foreach_add_(thetas, moves, alpha=factor)


class Line:
    """Points θ + αd, always computed from a snapshot of θ, never by adding up moves.

    `at(α)` is the combination that makes the point. The parameters are at θ when this is made.
    """

    def __init__(
        self, layout: Layout, at: Callable[[Number], Combination], snapshot: Buffer
    ) -> None:
        self._layout, self._at, self._snapshot = layout, at, snapshot
        self._alpha = 0.0

    def move_to(self, alpha: Number) -> None:
        """Put the parameters at θ + α·d."""
        if alpha != self._alpha:
            if self._alpha:
                self.move_back()
            combine(self._layout, self._at(alpha))
            self._alpha = alpha

    def move_back(self) -> None:
        """Put the parameters back to θ, bit for bit."""
        torch._foreach_copy_(self._layout.values(), self._snapshot.views)
        self._alpha = 0.0
