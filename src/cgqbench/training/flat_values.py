"""The values of many tensors in one tensor for each dtype, so that a graph copies them at once."""

from __future__ import annotations

import torch
from torch import Tensor


def _kinds(tensors: list[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault(tensor.dtype, []).append(tensor)
    return kinds


def flat_values(tensors: list[Tensor]) -> list[Tensor]:
    """Their values, in one new tensor for each dtype."""
    return [torch.cat([t.reshape(-1) for t in alike]) for alike in _kinds(tensors).values()]


def set_values(tensors: list[Tensor], flat: list[Tensor]) -> None:
    """The inverse of `flat_values`."""
    for alike, values in zip(_kinds(tensors).values(), flat, strict=True):
        parts = torch.split(values, [tensor.numel() for tensor in alike])
        shaped = [part.view(t.shape) for part, t in zip(parts, alike, strict=True)]
        torch._foreach_copy_(alike, shaped)
