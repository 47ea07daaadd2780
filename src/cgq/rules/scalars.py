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


def is_zero(number: Number) -> bool:
    """Whether the host knows that it is zero."""
    return not isinstance(number, Tensor) and not number


def is_finite(number: Number) -> Number:
    """Whether the number is finite: a bool, or a tensor of one."""
    # Not `isfinite`, which is four kernels.
    return abs(number) < math.inf if isinstance(number, Tensor) else math.isfinite(number)


def times(factor: Number, number: Number) -> Number:
    """Their product; a product with one costs no kernel."""
    return number if isinstance(factor, float) and factor == 1.0 else factor * number
