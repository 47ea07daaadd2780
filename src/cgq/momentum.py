"""Conjugate-gradient formulas for the momentum β in p = -g + βp'.

A rule is a function of the gradient g, the previous gradient h and the previous direction p. It
uses nothing but `@`, so it works on one-dimensional tensors and on whole networks alike. It may
return anything where its denominator vanishes (as it does on the first step, where h and p are
zero): `bounded` turns what is not finite into 0, a restart from steepest descent.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Vector(Protocol):
    """Anything with an inner product."""

    def __matmul__(self, other: Any, /) -> Tensor: ...


class Rule(Protocol):
    """β from the gradient g, the previous gradient h and the previous direction p."""

    def __call__(self, g: Vector, h: Vector, p: Vector, /) -> Tensor | float: ...


def polak_ribiere(g: Vector, h: Vector, p: Vector, /) -> Tensor:
    """β = g·(g - h) / h·h.

    >>> g, h, p = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0]), torch.tensor([-2.0, 0.0])
    >>> polak_ribiere(g, h, p)
    tensor(0.7500)
    """
    return (g @ g - g @ h) / (h @ h)


def fletcher_reeves(g: Vector, h: Vector, p: Vector, /) -> Tensor:
    """β = g·g / h·h.

    >>> g, h, p = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0]), torch.tensor([-2.0, 0.0])
    >>> fletcher_reeves(g, h, p)
    tensor(1.2500)
    """
    return (g @ g) / (h @ h)


def hestenes_stiefel(g: Vector, h: Vector, p: Vector, /) -> Tensor:
    """β = g·(g - h) / p·(g - h).

    >>> g, h, p = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0]), torch.tensor([-2.0, 0.0])
    >>> hestenes_stiefel(g, h, p)
    tensor(1.5000)
    """
    return (g @ g - g @ h) / (g @ p - h @ p)


def dai_yuan(g: Vector, h: Vector, p: Vector, /) -> Tensor:
    """β = g·g / p·(g - h).

    >>> g, h, p = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0]), torch.tensor([-2.0, 0.0])
    >>> dai_yuan(g, h, p)
    tensor(2.5000)
    """
    return (g @ g) / (g @ p - h @ p)


def bounded(beta: Tensor | float, max_momentum: float) -> Tensor:
    """β' = min(max(0, β), β_max), and 0 where β is not finite.

    >>> [float(bounded(beta, 0.8)) for beta in (-1.0, 0.5, 2.0, float("nan"), float("inf"))]
    [0.0, 0.5, 0.8, 0.0, 0.0]
    """
    if not isinstance(beta, Tensor):
        beta = torch.tensor(beta, dtype=torch.float64)
    return torch.where(beta.isfinite(), beta.clamp(0.0, max_momentum), 0.0)
