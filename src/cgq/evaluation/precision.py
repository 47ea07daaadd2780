"""How finely a loss was computed, as far as it shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

# A network's last layers, which under autocast are as coarse as the rest, lie within as many nodes
# of the loss; to look at all would cost time in every step. Of many losses that are joined in one
# node, the first and the last few stand for the others.
NEAR = 32
FEW = 2


def rounding(dtypes: Iterable[torch.dtype]) -> float:
    """The relative error of the coarsest of these types; 0.0 of none.

    >>> rounding([torch.float32, torch.bfloat16])
    0.0078125
    """
    return max((torch.finfo(dtype).eps for dtype in set(dtypes)), default=0.0)


def dtypes_behind(loss: Tensor | float, device: torch.device) -> set[torch.dtype]:
    """The types that `loss` was seen to pass through, last layers first.

    Autocast around the caller is seen; within a closure only by the graph it leaves, which ends at
    what torch.compile has made one.

    >>> weight = torch.ones(2, 2, requires_grad=True)
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     loss = (weight @ weight).float().sum()
    >>> dtypes_behind(loss, weight.device) == {torch.float32, torch.bfloat16}
    True
    """
    found: set[torch.dtype] = set()
    if torch.is_autocast_enabled(device.type):
        found.add(torch.get_autocast_dtype(device.type))
    if isinstance(loss, Tensor):
        found.update((loss.dtype, *_dtypes_in_graph(loss)))
    return {dtype for dtype in found if dtype.is_floating_point}


def _dtypes_in_graph(loss: Tensor) -> Iterator[torch.dtype]:
    nodes = [] if loss.grad_fn is None else [loss.grad_fn]
    for node in nodes:
        for output in node._input_metadata:
            yield output.dtype
        if len(nodes) < NEAR:
            inputs = [before for before, _ in node.next_functions if before is not None]
            nodes += inputs if len(inputs) <= 2 * FEW else inputs[:FEW] + inputs[-FEW:]
