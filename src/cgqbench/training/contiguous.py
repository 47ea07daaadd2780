"""Many tensors in one piece of memory, so that single kernels serve them all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Kernels read this many bytes at once, and are slower, or others, where a tensor starts between.
ALIGNED = 16


def views_side_by_side(tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """Empty tensors like these, next to each other in memory; None: some would be misaligned."""
    alike = len({(tensor.dtype, tensor.device) for tensor in tensors}) == 1
    dense = all(_is_dense(tensor) for tensor in tensors)
    sizes = [tensor.numel() for tensor in tensors]
    if not alike or not dense or any(n * tensors[0].element_size() % ALIGNED for n in sizes[:-1]):
        return None
    block = torch.empty(sum(sizes), dtype=tensors[0].dtype, device=tensors[0].device)
    views, offset = [], 0
    for tensor, size in zip(tensors, sizes, strict=True):
        views.append(block.as_strided(tensor.shape, tensor.stride(), offset))
        offset += size
    return views


def _is_dense(tensor: Tensor) -> bool:
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return sum((size - 1) * stride for size, stride in sides) + 1 == tensor.numel()


def join(parameters: Sequence[Tensor]) -> None:
    """Move parameters next to each other, if that leaves all of them aligned.

    >>> model = torch.nn.Linear(4, 4)
    >>> join(list(model.parameters()))
    >>> model.weight.untyped_storage().data_ptr() == model.bias.untyped_storage().data_ptr()
    True
    """
    places = views_side_by_side(parameters) if parameters else None
    if places is not None:
        for parameter, place in zip(parameters, places, strict=True):
            parameter.data = place.copy_(parameter.data)


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
