"""Inner products and lengths of vectors of all parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from cgq.rules.scalars import Number, scalar_dtype, times
from cgq.vectors.layout import Layout

# So much is widened to float64 at a time, where float32 does not reach.
PIECE = 1 << 18
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
        share_products([(self, other)])
        dots = self._dots[_pair(self, other)]
        if weights is not None:
            groups = zip(self.layout.dot_groups, dots, strict=True)
            dots = [times(weights[group], dot) for group, dot in groups]
        return times(self.scale * other.scale, self._total(dots))

    def length(self) -> Number:
        """The root of the product with itself."""
        return (self @ self) ** 0.5

    def _dots_with(self, other: Vector) -> list[Any]:
        """The products of each span, of this rank."""
        return [_wide_dot(a, b) for a, b in zip(self.parts(), other.parts(), strict=True)]

    def _total(self, dots: list[Any]) -> Number:
        return sum(dots[1:], dots[0])


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
        return [_dot(a, b).to(device, dtype) for a, b in pairs]

    def _total(self, dots: list[Any]) -> Number:
        return torch.stack(dots).sum() if len(dots) > 1 else dots[0]


def share_products(pairs: Iterable[tuple[Vector, Vector]]) -> None:
    """Compute the products of these pairs that are not known yet, with one collective at most."""
    new = [(a, b) for a, b in pairs if _pair(a, b) not in a._dots]
    if not new:
        return
    layout = new[0][0].layout
    dots = [a._dots_with(b) for a, b in new]
    if layout.reduce is not None:
        # By groups, which all ranks have: how many spans there are depends on a rank's shards.
        groups = layout.dot_groups
        sums = [_sum_of_group(layout, each, group) for each in dots for group in groups]
        numbers = iter(layout.reduce(sums))
        dots = [[next(numbers) for _ in groups] for _ in new]
    for (a, b), each in zip(new, dots, strict=True):
        a._dots[_pair(a, b)] = each


def _sum_of_group(layout: Layout, dots: list[Any], group: int) -> Number:
    pairs = zip(layout.spans, dots, strict=True)
    return sum(dot for span, dot in pairs if span.group == group)


def share_all_products(*vectors: Vector | None) -> None:
    """Where vectors are sharded, compute all their products at once: each costs a collective."""
    known = [vector for vector in vectors if vector is not None]
    if known[0].layout.reduce is not None:
        share_products(combinations_with_replacement(known, 2))


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


def _wide_dot(a: Tensor, b: Tensor) -> float:
    product = _dot(a, b).item()
    if product == 0.0 or not math.isfinite(product):  # perhaps only out of range
        pieces = zip(torch.split(a, PIECE), torch.split(b, PIECE), strict=True)
        product = sum(torch.dot(x.double(), y.double()).item() for x, y in pieces)
    return product


def _length(a: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(a, dtype=_widened(a.dtype))
    return length
