"""Conjugate-gradient formulas for the momentum β in p = -g + βp'.

A rule is a function of the gradient g, the previous gradient h and the previous direction p. It
uses nothing but `@`, so it works on one-dimensional tensors and on whole networks alike. Where its
denominator vanishes (as it does on the first step, where h and p are zero) it may return what is
not finite or divide by zero: `bounded` makes 0 of that, a restart from steepest descent.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from torch import Tensor

from cgq.rules.scalars import Number, choose, is_finite, least


class Vector(Protocol):
    """Anything with an inner product."""

    def __matmul__(self, other: Any, /) -> Any: ...


class Rule(Protocol):
    """β from the gradient g, the previous gradient h and the previous direction p."""

    def __call__(self, g: Vector, h: Vector, p: Vector, /) -> Tensor | float: ...


def polak_ribiere(g: Vector, h: Vector, p: Vector, /) -> Any:
    """β = g·(g - h) / h·h.

    >>> import torch
    >>> g, h, p = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0]), torch.tensor([-2.0, 0.0])
    >>> polak_ribiere(g, h, p)
    tensor(0.7500)
    """
    return (g @ g - g @ h) / (h @ h)


def fletcher_reeves(g: Vector, h: Vector, p: Vector, /) -> Any:
    """β = g·g / h·h.

    >>> import torch
    >>> g, h, p = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0]), torch.tensor([-2.0, 0.0])
    >>> fletcher_reeves(g, h, p)
    tensor(1.2500)
    """
    return (g @ g) / (h @ h)


def hestenes_stiefel(g: Vector, h: Vector, p: Vector, /) -> Any:
    """β = g·(g - h) / p·(g - h).

    >>> import torch
    >>> g, h, p = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0]), torch.tensor([-2.0, 0.0])
    >>> hestenes_stiefel(g, h, p)
    tensor(1.5000)
    """
    return (g @ g - g @ h) / (g @ p - h @ p)


def dai_yuan(g: Vector, h: Vector, p: Vector, /) -> Any:
    """β = g·g / p·(g - h).

    >>> import torch
    >>> g, h, p = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0]), torch.tensor([-2.0, 0.0])
    >>> dai_yuan(g, h, p)
    tensor(2.5000)
    """
    return (g @ g) / (g @ p - h @ p)


OURS: tuple[Rule, ...] = polak_ribiere, fletcher_reeves, hestenes_stiefel, dai_yuan
"""Those of which it is known that they read no number on the host."""


def bounded(beta: Number, max_momentum: float) -> Number:
    """β' = min(max(0, β), β_max), and 0 where β is not finite.

    >>> [bounded(beta, 0.8) for beta in (-1.0, 0.5, 2.0, float("nan"), float("inf"))]
    [0.0, 0.5, 0.8, 0.0, 0.0]
    """
    if not isinstance(beta, (int, float)):
        positive = choose(beta > 0.0, beta, 0.0)
        return choose(is_finite(beta), least(positive, max_momentum), 0.0)
    return min(max(0.0, beta), max_momentum) if math.isfinite(beta) else 0.0


def momentum_of(rule: Rule, g: Vector, h: Vector, p: Vector, max_momentum: float) -> Number:
    """The bounded momentum a rule asks for."""
    try:
        return bounded(rule(g, h, p), max_momentum)
    except ZeroDivisionError:
        return 0.0
