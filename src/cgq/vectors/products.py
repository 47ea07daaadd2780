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
# What would round a sum to 8 or 11 bits.
NARROW = torch.bfloat16, torch.float16

Dots = dict[tuple[str, str], list[Any]]
"""Products of each span, without the scales, by the names of the two vectors."""


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
            dots = [
                times(weights[span.group], dot)
                for span, dot in zip(self.layout.spans, dots, strict=True)
            ]
        several = len(dots) > 1 and not self.layout.on_host
        total = torch.stack(dots).sum() if several else sum(dots[1:], dots[0])
        return times(self.scale * other.scale, total)

    def length(self) -> Number:
        """The root of the product with itself.

        On an accelerator it costs less than the product, and is of the vector's own dtype, or of
        float32 if that is wider, where one kernel gives all of it.
        """
        is_one = len(self.layout.spans) == 1 and self.layout.reduce is None
        if self.layout.on_host or not is_one:
            return (self @ self) ** 0.5
        (part,) = self.parts()
        return times(abs(self.scale), _length(part))

    def _dots_with(self, other: Vector) -> list[Any]:
        """The products of each span, of this rank: floats, or tensors on one device."""
        device, dtype = self.layout.device, scalar_dtype(self.layout.device)
        if other is self and not self.layout.on_host:  # the host launches a norm faster
            return [_length(a).to(device, dtype).square() for a in self.parts()]
        pairs = zip(self.parts(), other.parts(), strict=True)
        if self.layout.on_host:
            return [_dot_on_host(a, b) for a, b in pairs]
        return [_dot(a, b).to(device, dtype) for a, b in pairs]


def share_products(pairs: Iterable[tuple[Vector, Vector]]) -> None:
    """Compute the products of these pairs that are not known yet, with one collective at most."""
    new = [(a, b, a._dots_with(b)) for a, b in pairs if _pair(a, b) not in a._dots]
    if not new:
        return
    reduce = new[0][0].layout.reduce
    numbers = iter(() if reduce is None else reduce([dot for _, _, dots in new for dot in dots]))
    for a, b, dots in new:
        a._dots[_pair(a, b)] = dots if reduce is None else [next(numbers) for _ in dots]


def share_all_products(*vectors: Vector | None) -> None:
    """Where vectors are sharded, compute all their products at once: each costs a collective."""
    known = [vector for vector in vectors if vector is not None]
    if known[0].layout.reduce is not None:
        share_products(combinations_with_replacement(known, 2))


def _pair(a: Vector, b: Vector) -> tuple[str, str]:
    return (a.name, b.name) if a.name <= b.name else (b.name, a.name)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype != b.dtype or a.dtype in NARROW:
        wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
        a, b = a.to(wide), b.to(wide)
    return torch.dot(a, b)


def _length(a: Tensor) -> Tensor:
    wide = torch.float32 if a.dtype in NARROW else a.dtype
    length: Tensor = torch.linalg.vector_norm(a, dtype=wide)
    return length


def _dot_on_host(a: Tensor, b: Tensor) -> float:
    dot = _dot(a, b).item()
    if dot == 0.0 or not math.isfinite(dot):  # perhaps only out of range
        pieces = zip(torch.split(a, PIECE), torch.split(b, PIECE), strict=True)
        dot = sum(torch.dot(x.double(), y.double()).item() for x, y in pieces)
    return dot
