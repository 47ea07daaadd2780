"""The line θ + αd, along which parameters are moved; on an accelerator see `device_line.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from cgq.rules.scalars import Number
from cgq.vectors.layout import ALL, Buffer, Layout, in_a_row, lie_alike


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
        if kept != 1.0:
            torch._foreach_mul_(thetas, kept)
        for moves, factor in terms:
            torch._foreach_add_(thetas, moves, alpha=factor)


def by_pieces(layout: Layout, combination: Combination) -> Callable[[int, slice], None]:
    """θ ← kept·θ + Σ factor·vector of one of the layout's pieces, each time it is called."""
    values = layout.values()

    def move(number: int, elements: slice) -> None:
        _, _, group, members = layout.spans[number]
        kept, first = combination.kept[group], members[0]
        if elements is ALL and len(members) == 1:  # the most frequent, and quickly done
            if kept != 1.0:
                values[first].mul_(kept)
            for vector, of in combination.terms:
                if of[group]:
                    values[first].add_(vector.views[first], alpha=of[group])
            return
        terms = [(vector, of[group]) for vector, of in combination.terms if of[group]]
        if elements is not ALL and terms and lie_alike(values[first], terms[0][0].views[first]):
            thetas = [in_a_row(values[first])[elements]]
            moves = [([vector.parts[number][elements]], factor) for vector, factor in terms]
        elif not elements.start:  # a parameter with gaps is moved when the last piece is due
            thetas = [values[index] for index in members]
            moves = [([v.views[index] for index in members], factor) for v, factor in terms]
        else:
            return
        if kept != 1.0:
            torch._foreach_mul_(thetas, kept)
        for vectors, factor in moves:
            torch._foreach_add_(thetas, vectors, alpha=factor)

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

    def move_to(self, alpha: Number) -> None:
        """Put the parameters at θ + α·d."""
        if alpha != self._alpha:
            combine(self._layout, self._at(alpha), self._snapshot if self._alpha else None)
            self._alpha = alpha

    def move_back(self) -> None:
        """Put the parameters back to θ, bit for bit."""
        torch._foreach_copy_(self._layout.values(), self._snapshot.views)
        self._alpha = 0.0
