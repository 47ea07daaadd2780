"""Numbers that are Python floats on the host, and 0-dim tensors where reading one would wait."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Number = Any


def is_host(device: torch.device) -> bool:
    """Whether reading a number off `device` is free; elsewhere it makes the host wait."""
    return device.type == "cpu"


def scalar_dtype(device: torch.device) -> torch.dtype:
    """The most precise type `device` offers for sums over all parameters."""
    return torch.float32 if device.type == "mps" else torch.float64


def as_tensor(number: Number, device: torch.device) -> Tensor:
    """The number on `device`, in full precision and without waiting for it."""
    if isinstance(number, Tensor):
        return number.to(device, scalar_dtype(device))
    return torch.full((), number, dtype=scalar_dtype(device), device=device)


def stacked(device: torch.device, *numbers: Number) -> Tensor:
    """The numbers as one vector on `device`."""
    return torch.stack([as_tensor(number, device) for number in numbers])


def least(a: Number, b: Number) -> Number:
    """min(a, b), on the device if one of them is there."""
    if isinstance(a, Tensor):
        return a.clamp_max(b)
    return b.clamp_max(a) if isinstance(b, Tensor) else min(a, b)


def choose(condition: Number, yes: Number, no: Number) -> Number:
    """`yes` where the condition holds, else `no`; on the device if the condition is there."""
    if not isinstance(condition, Tensor):
        return yes if condition else no
    if not isinstance(yes, Tensor) and not isinstance(no, Tensor):
        if yes == no:
            return yes
        yes = as_tensor(yes, condition.device)  # torch would make a narrow one of two numbers
    return torch.where(condition, yes, no)


def is_finite(number: Number) -> Number:
    """Whether the number is finite: a bool, or a tensor of one."""
    # Not `isfinite`, which is four kernels.
    return abs(number) < math.inf if isinstance(number, Tensor) else math.isfinite(number)


def is_lost(number: Tensor) -> Tensor:
    """Whether a number on a device is not finite."""
    # Not `~is_finite`, a kernel more: what is not finite is NaN off itself.
    return (number - number) != 0.0


def times(factor: float, number: Number) -> Number:
    """Their product; a product with one costs no kernel."""
    return number if factor == 1.0 else factor * number


def product(number: Number, *factors: float) -> Number:
    """The number times each factor in turn, or times all at once where that is a kernel each."""
    if isinstance(number, Tensor):
        return times(math.prod(factors), number)
    for factor in factors:
        number = factor * number
    return number
