"""Inner products and lengths of vectors of all parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from cgq.flat import Layout
from cgq.scalars import Number, scalar_dtype, times
from cgq.shards import as_it_is

# So much is widened to float64 at a time, where float32 does not reach.
PIECE = 1 << 18
# What would round a sum to 8 or 11 bits.
NARROW = torch.bfloat16, torch.float16


class Vector:
    """scale · (the vector whose runs are `parts()`); `@` is the inner product.

    Products are kept: asking twice costs once.
    """

    def __init__(
        self, layout: Layout, parts: Callable[[], Iterable[Tensor]], scale: float = 1.0
    ) -> None:
        self.layout = layout
        self.parts = parts
        self.scale = scale
        self._dots: dict[int, list[Any]] = {}

    def __matmul__(self, other: Vector) -> Number:
        return self.inner(other)

    def inner(self, other: Vector, weights: Sequence[float] | None = None) -> Number:
        """Σ over groups of weights[group] · (self · other within the group)."""
        dots = self._dots_with(other)
        if weights is not None:
            dots = [
                times(weights[run.group], d) for run, d in zip(self.layout.runs, dots, strict=True)
            ]
        several = len(dots) > 1 and not self.layout.on_host
        total = torch.stack(dots).sum() if several else sum(dots[1:], dots[0])
        return times(self.scale * other.scale, self.layout.whole(total))

    def length(self) -> Number:
        """The root of the product with itself.

        On an accelerator it costs less than the product, and is of the vector's own dtype, or of
        float32 if that is wider, where one kernel gives all of it.
        """
        is_one = len(self.layout.runs) == 1 and self.layout.whole is as_it_is
        if self.layout.on_host or not is_one:
            return (self @ self) ** 0.5
        (part,) = self.parts()
        return times(abs(self.scale), _length(part))

    def _dots_with(self, other: Vector) -> list[Any]:
        """The products of each run, without the scales: floats, or tensors on one device."""
        dots = self._dots.get(id(other))
        if dots is None:
            device, dtype = self.layout.device, scalar_dtype(self.layout.device)
            if self.layout.on_host:
                dots = [_dot_on_host(a, b) for a, b in self._beside(other)]
            elif other is self:  # whose norm the host launches faster than a product
                dots = [_length(a).to(device, dtype).square() for a in self.parts()]
            else:
                dots = [_dot(a, b).to(device, dtype) for a, b in self._beside(other)]
            self._dots[id(other)] = other._dots[id(self)] = dots
        return dots

    def _beside(self, other: Vector) -> Iterable[tuple[Tensor, Tensor]]:
        return zip(self.parts(), other.parts(), strict=True)


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
