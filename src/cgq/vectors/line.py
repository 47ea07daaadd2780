"""The line θ + αd, along which parameters are moved; on an accelerator see `device_line.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cgq.rules.scalars import Number
from cgq.vectors.layout import ALL, Buffer, Layout, in_a_row


class Combination(NamedTuple):
    """kept·θ + Σ factor·vector. Of `kept` and of each factor there is one number per group."""

    kept: Sequence[Number]
    terms: Sequence[tuple[Buffer, Sequence[Number]]]


def combine(layout: Layout, combination: Combination, start: Buffer | None = None) -> None:
    """θ ← kept·start + Σ factor·vector, with few passes over memory; None: from where θ is."""
    values = layout.values()
    for group, members in layout.sections:
        thetas, kept = [values[index] for index in members], combination.kept[group]
        terms = [
            ([vector.views[index] for index in members], factors[group])
            for vector, factors in combination.terms
            if factors[group]
        ]
        if start is not None:
            starts = [start.views[index] for index in members]
            if kept != 1.0 or not terms:
                torch._foreach_copy_(thetas, starts)
            else:
                moves, factor = terms.pop(0)
                for theta, origin, move in zip(thetas, starts, moves, strict=True):
                    torch.add(origin, move, alpha=factor, out=theta)
        _move(thetas, kept, terms)


def _move(thetas: list[Tensor], kept: Number, terms: Iterable[tuple[list[Tensor], Number]]) -> None:
    """θ ← kept·θ + Σ factor·vector."""
    for theta in thetas if kept != 1.0 else ():
        theta.mul_(kept)  # one by one: for many, torch rounds the factor to bf16 first
    for moves, factor in terms:
        torch._foreach_add_(thetas, moves, alpha=factor)


def by_pieces(layout: Layout, combination: Combination) -> Callable[[int, slice], None]:
    """θ ← kept·θ + Σ factor·vector of one of the layout's pieces, each time it is called."""
    values = layout.values()

    def move(number: int, elements: slice) -> None:
        _, _, group, members = layout.spans[number]
        kept, first = combination.kept[group], members[0]
        terms = [(vector, of[group]) for vector, of in combination.terms if of[group]]
        if elements is not ALL and layout.has_no_gaps(first, values[first]):
            theta = in_a_row(values[first])[elements]
            _move([theta], kept, [([v.parts[number][elements]], factor) for v, factor in terms])
        elif not elements.start:  # a parameter with gaps is moved when the last piece is due
            moves = [([v.views[index] for index in members], factor) for v, factor in terms]
            _move([values[index] for index in members], kept, moves)

    return move


class Line:
    """Points θ + αd, always computed from a snapshot of θ, never by adding up moves.

    `at(α)` is the combination that makes the point. The parameters are at θ when this is made, or
    anywhere if they do not start at the snapshot.
    """

    def __init__(
        self,
        layout: Layout,
        at: Callable[[Number], Combination],
        snapshot: Buffer,
        *,
        starts_at_snapshot: bool = True,
    ) -> None:
        self._layout, self._at, self._snapshot = layout, at, snapshot
        self._alpha = 0.0 if starts_at_snapshot else math.nan
        self._stays = False

    def move_to(self, alpha: Number) -> None:
        """Put the parameters at θ + α·d."""
        if alpha != self._alpha:
            combine(self._layout, self._at(alpha), self._snapshot if self._alpha else None)
            self._alpha = alpha

    def stay(self) -> None:
        """There is no way back from now on: who remembers the step may overwrite the snapshot."""
        self._stays = True

    def move_back(self) -> None:
        """Put the parameters back to θ, bit for bit."""
        if not self._stays:
            self._return()
            self._alpha = 0.0

    def _return(self) -> None:
        torch._foreach_copy_(self._layout.values(), self._snapshot.views)
