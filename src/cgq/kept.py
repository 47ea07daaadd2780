"""What an optimizer knows, set aside, so that a step it has taken can be undone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cgq.probe import copies


class Kept:
    """The state and the groups of an optimizer, and of those inside it, as they were.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = torch.optim.Adam([weight])
    >>> kept = Kept(optimizer)
    >>> weight.grad = torch.ones(2)
    >>> optimizer.step()
    >>> kept.restore()
    >>> len(optimizer.state)
    0
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._tensors: list[Tensor] = []
        self._saved = [
            (
                each,
                {param: self._noted(state) for param, state in each.state.items()},
                [
                    {name: self._noted(value) for name, value in group.items() if name != "params"}
                    for group in each.param_groups
                ],
            )
            for each in _with_inner(optimizer)
        ]
        self._values = copies(self._tensors)

    def _noted(self, value: Any) -> Any:
        """The same tensors and numbers in new containers."""
        if isinstance(value, Tensor):
            self._tensors.append(value)
        elif isinstance(value, dict):
            return {name: self._noted(inner) for name, inner in value.items()}
        elif type(value) in (list, tuple):
            return type(value)(map(self._noted, value))
        return value

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back; tensors that still exist keep their place in memory."""
        for tensor, value in zip(self._tensors, self._values, strict=True):
            if value is not None:
                tensor.copy_(value)
        for optimizer, state, groups in self._saved:
            optimizer.state.clear()
            optimizer.state.update(state)
            for group, saved in zip(optimizer.param_groups, groups, strict=True):
                params = group["params"]
                group.clear()
                group.update({"params": params, **saved})


def _with_inner(optimizer: Optimizer) -> Iterator[Optimizer]:
    """The optimizer and those it wraps."""
    yield optimizer
    for value in vars(optimizer).values():
        if isinstance(value, Optimizer):
            yield from _with_inner(value)
