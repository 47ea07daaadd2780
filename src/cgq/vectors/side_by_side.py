"""Many tensors in one piece of memory, so that single kernels serve them all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Kernels read this many bytes at once, and are slower, or others, where a tensor starts between.
ALIGNED = 16


def side_by_side(tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """Empty tensors like these, next to each other in memory; None: some would be misaligned.

    For gradients that one's own code makes, such as a captured graph.

    >>> first, second = side_by_side([torch.zeros(4), torch.zeros(3)])
    >>> second.data_ptr() - first.data_ptr()
    16
    """
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


def whole(tensors: Sequence[Tensor]) -> Tensor | None:
    """The memory of tensors that lie side by side in this order, as one; None: they are apart.

    >>> first, second = side_by_side([torch.zeros(4), torch.zeros(3)])
    >>> whole([first, second]).shape, whole([second, first])
    (torch.Size([7]), None)
    """
    first, offset = tensors[0], tensors[0].storage_offset()
    memory = first.untyped_storage()
    size = sum(tensor.numel() for tensor in tensors)
    end = first.data_ptr()
    for tensor in tensors:
        is_next = tensor.data_ptr() == end and tensor.dtype == first.dtype and _is_dense(tensor)
        if not is_next or tensor.untyped_storage().data_ptr() != memory.data_ptr():
            return None
        end += tensor.numel() * tensor.element_size()
    return first.detach().as_strided((size,), (1,), offset)


def _is_dense(tensor: Tensor) -> bool:
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return sum((size - 1) * stride for size, stride in sides) + 1 == tensor.numel()


def join(parameters: Sequence[Tensor]) -> None:
    """Move parameters next to each other in memory, if that leaves all of them aligned.

    On an accelerator the optimizers of this package find out, and single kernels serve all
    parameters. Nothing else changes, but for the last bits on a GPU. Call it once the model is on
    its device, before the optimizer is made.

    >>> model = torch.nn.Linear(4, 4)
    >>> join(list(model.parameters()))
    >>> model.weight.untyped_storage().data_ptr() == model.bias.untyped_storage().data_ptr()
    True
    """
    places = side_by_side(parameters) if parameters else None
    if places is not None:
        for parameter, place in zip(parameters, places, strict=True):
            parameter.data = place.copy_(parameter.data)
