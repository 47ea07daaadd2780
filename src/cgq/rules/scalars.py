"""Numbers that are Python floats on the host, and 0-dim tensors where reading one would wait."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Number = Any


class Deferred(ABC):
    """A number that a device computes later, at once with others. It has a tensor's operators."""

    __slots__ = ()

    @abstractmethod
    def choose(self, yes: Number, no: Number) -> Deferred:
        """`yes` where this condition holds, else `no`."""

    @abstractmethod
    def least(self, other: Number) -> Deferred:
        """The lesser of both."""

    @abstractmethod
    def stacked(
        self, device: torch.device, numbers: Sequence[Number], out: Tensor | None = None
    ) -> Tensor:
        """These numbers, one of which is this, as one vector, which may be there already."""

    @abstractmethod
    def tensor(self, device: torch.device) -> Tensor:
        """This number alone."""

    def __bool__(self) -> bool:
        raise TypeError("A number that is not computed yet cannot be asked for.")


def is_host(device: torch.device) -> bool:
    """Whether reading a number off `device` is free; elsewhere it makes the host wait."""
    return device.type == "cpu"


def scalar_dtype(device: torch.device) -> torch.dtype:
    """The most precise type `device` offers for sums over all parameters."""
    return torch.float32 if device.type == "mps" else torch.float64


def as_tensor(number: Number, device: torch.device) -> Tensor:
    """The number on `device`, in full precision and without waiting for it."""
    if isinstance(number, Deferred):
        return number.tensor(device)
    if isinstance(number, Tensor):
        return number.to(device, scalar_dtype(device))
    return torch.full((), number, dtype=scalar_dtype(device), device=device)


def stacked(device: torch.device, *numbers: Number, out: Tensor | None = None) -> Tensor:
    """The numbers as one vector on `device`, which may be there already."""
    for number in numbers:
        if isinstance(number, Deferred):
            return number.stacked(device, numbers, out)
    return torch.stack([as_tensor(number, device) for number in numbers], out=out)


def as_tensors(device: torch.device, *numbers: Number) -> Sequence[Tensor]:
    """The numbers on `device`, with one kernel if they are not computed yet."""
    if any(isinstance(number, Deferred) for number in numbers):
        return stacked(device, *numbers).unbind()
    return [as_tensor(number, device) for number in numbers]


def least(a: Number, b: Number) -> Number:
    """min(a, b), on the device if one of them is there."""
    if isinstance(a, Deferred):
        return a.least(b)
    if isinstance(b, Deferred):
        return b.least(a)
    if isinstance(a, Tensor):
        return a.clamp_max(b)
    return b.clamp_max(a) if isinstance(b, Tensor) else min(a, b)


def choose(condition: Number, yes: Number, no: Number) -> Number:
    """`yes` where the condition holds, else `no`; on the device if the condition is there."""
    if isinstance(condition, Deferred):
        return condition.choose(yes, no)
    if not isinstance(condition, Tensor):
        return yes if condition else no
    if not isinstance(yes, Tensor) and not isinstance(no, Tensor):
        if yes == no:
            return yes
        yes = as_tensor(yes, condition.device)  # torch would make a narrow one of two numbers
    return torch.where(condition, yes, no)


def is_zero(number: Number) -> bool:
    """Whether the host knows that it is zero."""
    return not isinstance(number, (Tensor, Deferred)) and not number


def is_finite(number: Number) -> Number:
    """Whether the number is finite: a bool, or a tensor of one."""
    # Not `isfinite`, which is four kernels.
    is_known = not isinstance(number, (Tensor, Deferred))
    return math.isfinite(number) if is_known else abs(number) < math.inf


def finite_or_zero(number: Number) -> Number:
    """The number of a device, or 0 where it is NaN or infinite."""
    if isinstance(number, Deferred):
        return choose(is_finite(number), number, 0.0)
    return number.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def quotient(a: Number, b: Number) -> Number:
    """a / b as the host rounds it: of a tensor and a float torch may multiply by a reciprocal."""
    if isinstance(a, Tensor) and isinstance(b, float):
        b = as_tensor(b, a.device)
    elif isinstance(a, float) and isinstance(b, Tensor):
        a = as_tensor(a, b.device)
    return a / b


def times(factor: Number, number: Number) -> Number:
    """Their product; a product with one costs no kernel."""
    return number if isinstance(factor, float) and factor == 1.0 else factor * number
