"""Inner products and lengths of vectors of all parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from cgq.rules.scalars import Number, scalar_dtype, stacked, times
from cgq.vectors import one_pass
from cgq.vectors.formula import formula
from cgq.vectors.layout import PIECE, Layout

NARROW = torch.bfloat16, torch.float16

Dots = dict[tuple[str, str], list[Any]]
"""Products of each span (of each group, if sharded), without scales, by the vectors' names."""


class Vector:
    """scale · (the vector whose spans are `parts()`); `@` is the inner product.

    Vectors with the same `dots` share the products they know: asking twice costs once. A name
    stands for one vector there.
    """

    def __init__(
        self,
        name: str,
        layout: Layout,
        dots: Dots,
        parts: Callable[[], Iterable[Tensor]],
        scale: float = 1.0,
    ) -> None:
        self.name, self.layout, self.parts, self.scale = name, layout, parts, scale
        self._dots = dots

    def __matmul__(self, other: Vector) -> Number:
        return self.inner(other)

    def inner(self, other: Vector, weights: Sequence[float] | None = None) -> Number:
        """Σ over groups of weights[group] · (self · other within the group)."""
        pair = _pair(self, other)
        if pair not in self._dots:
            share_products([(self, other)])
        dots = self._dots[pair]
        if weights is not None:
            groups = zip(self.layout.dot_groups, dots, strict=True)
            dots = [times(weights[group], dot) for group, dot in groups]
        return times(self.scale * other.scale, self._total(dots))

    def length(self) -> Number:
        """The root of the product with itself."""
        return (self @ self) ** 0.5

    @staticmethod
    def _dots_of(pairs: Sequence[tuple[Vector, Vector]]) -> list[list[Any]]:
        """The products of each span of each pair, of this rank, in one pass over memory."""
        vectors = {vector.name: vector for pair in pairs for vector in pair}
        return _in_one_pass(vectors, pairs, _wide_dots)

    def _total(self, dots: list[Any]) -> Number:
        return sum(dots[1:], dots[0])


class DeviceVector(Vector):
    """A vector whose products are 0-dim tensors."""

    def length(self) -> Number:
        """The root of the product with itself.

        It costs less than the product where one kernel gives all of it. It is then of the vector's
        own dtype, or of float32 if that is wider.
        """
        layout = self.layout
        if len(layout.spans) > 1 or layout.reduce is not None or one_pass.serves(layout):
            return super().length()
        (part,) = self.parts()
        return times(abs(self.scale), _length(part))

    @staticmethod
    def _dots_of(pairs: Sequence[tuple[Vector, Vector]]) -> list[list[Any]]:
        vectors = {vector.name: vector for pair in pairs for vector in pair}
        if len(vectors) > one_pass.MOST or not one_pass.serves(pairs[0][0].layout):
            return [_device_dots(a, b) for a, b in pairs]
        return _in_one_pass(vectors, pairs, one_pass.products)

    def _total(self, dots: list[Any]) -> Number:
        return torch.stack(dots).sum() if len(dots) > 1 else dots[0]


class FormulaVector(DeviceVector):
    """A vector whose products are formulas."""

    @staticmethod
    def _dots_of(pairs: Sequence[tuple[Vector, Vector]]) -> list[list[Any]]:
        return [list(map(formula, dots)) for dots in DeviceVector._dots_of(pairs)]

    def _total(self, dots: list[Any]) -> Number:
        if len(dots) <= 2:
            return Vector._total(self, dots)
        return formula(stacked(self.layout.device, *dots).sum())  # in the order of the others'


def share_products(
    pairs: Iterable[tuple[Vector, Vector]], along: Sequence[Number] = ()
) -> list[Number]:
    """Compute the products of these pairs that are not known yet.

    Of shards that is one collective, in which the ranks agree on the numbers that come `along`.
    """
    asked = list(pairs)
    layout = asked[0][0].layout
    new = list({_pair(a, b): (a, b) for a, b in asked if _pair(a, b) not in a._dots}.values())
    dots, numbers = new[0][0]._dots_of(new) if new else [], list(along)
    if layout.reduce is not None and (new or numbers):
        # By groups, which all ranks have: how many spans there are depends on a rank's shards.
        groups = layout.dot_groups
        sums = [_sum_of_group(layout, each, group) for each in dots for group in groups]
        sums, numbers = layout.reduce(sums, numbers)
        whole = iter(sums)
        dots = [[next(whole) for _ in groups] for _ in new]
    for (a, b), each in zip(new, dots, strict=True):
        a._dots[_pair(a, b)] = each
    return numbers


def _sum_of_group(layout: Layout, dots: list[Any], group: int) -> Number:
    pairs = zip(layout.spans, dots, strict=True)
    return sum(dot for span, dot in pairs if span.group == group)


def share_ahead(
    pairs: Sequence[tuple[Vector, Vector]], along: Sequence[Number] = ()
) -> list[Number]:
    """`share_products` of what will be asked for, where it pays to compute it at once.

    It saves passes over memory, and of shards collectives. A device that makes a kernel of each
    product does so whenever that is.
    """
    layout = pairs[0][0].layout if pairs else None
    if layout is None:
        return list(along)
    pays = layout.on_host or layout.reduce is not None or one_pass.serves(layout)
    return share_products(pairs, along) if pays else list(along)


def pairs_of(
    vectors: Sequence[Vector | None], names: Collection[tuple[str, str]] | None
) -> list[tuple[Vector, Vector]]:
    """The pairs of these vectors, or those of them that are named."""
    known = [vector for vector in vectors if vector is not None]
    pairs = combinations_with_replacement(known, 2)
    return [pair for pair in pairs if names is None or _pair(*pair) in names]


def _pair(a: Vector, b: Vector) -> tuple[str, str]:
    return (a.name, b.name) if a.name <= b.name else (b.name, a.name)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Their product, summed in float32 at least: narrower sums have 8 or 11 bits."""
    if a.dtype != b.dtype or a.dtype in NARROW:
        wide = _widened(torch.promote_types(a.dtype, b.dtype))
        a, b = a.to(wide), b.to(wide)
    return torch.dot(a, b)


def _widened(dtype: torch.dtype) -> torch.dtype:
    """The dtype to sum in."""
    return torch.promote_types(dtype, torch.float32)


def _in_one_pass(
    vectors: Mapping[str, Vector],
    pairs: Sequence[tuple[Vector, Vector]],
    products: Callable[[Sequence[Tensor], Sequence[tuple[int, int]]], Sequence[Any]],
) -> list[list[Any]]:
    """Of each pair the products of its spans, span by span."""
    places = {name: place for place, name in enumerate(vectors)}
    wanted = [(places[a.name], places[b.name]) for a, b in pairs]
    spans = zip(*(vector.parts() for vector in vectors.values()), strict=True)
    dots = [products(parts, wanted) for parts in spans]
    return [list(each) for each in zip(*dots, strict=True)] if dots else [[] for _ in pairs]


def _wide_dots(parts: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> list[float]:
    """The products of these pairs of parts."""
    if parts[0].numel() <= PIECE:
        return [_wide_dot(parts[a], parts[b]) for a, b in pairs]
    totals = [0.0] * len(pairs)
    for pieces in zip(*(torch.split(part, PIECE) for part in parts), strict=True):
        for index, (a, b) in enumerate(pairs):
            totals[index] += _wide_dot(pieces[a], pieces[b])
    return totals


def _wide_dot(a: Tensor, b: Tensor) -> float:
    product = _dot(a, b).item()
    if product == 0.0 or not math.isfinite(product):  # perhaps only out of range
        product = torch.dot(a.double(), b.double()).item()
    return product


def _device_dots(a: Vector, b: Vector) -> list[Tensor]:
    device, dtype = a.layout.device, scalar_dtype(a.layout.device)
    if a is b:  # whose norm the host launches faster than a product
        return [_length(part).to(device, dtype).square() for part in a.parts()]
    pairs = zip(a.parts(), b.parts(), strict=True)
    return [_dot(x, y).to(device, dtype) for x, y in pairs]


def _length(a: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(a, dtype=_widened(a.dtype))
    return length
