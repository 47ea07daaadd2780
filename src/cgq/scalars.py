"""Numbers that are Python floats on the host, and 0-dim tensors where reading one would wait."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Number = Any


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
