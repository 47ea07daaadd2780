"""Which bases can be recorded, and what has to stay as it is for that."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as of_torch

from cgq.rules import scalars

PLAIN = bool, int, float, str, type(None)  # what a key can hold by value


class Fixed(NamedTuple):
    """What a recording of a base's step takes to stay as it is."""

    key: list[object]
    tensors: list[Tensor]
    """All of its state."""

    @classmethod
    def of(cls, base: Optimizer) -> Fixed | None:
        """That of this base; None: its step cannot be recorded.

        It can be of a base of torch's own that says so by `capturable=True`, and of torch's SGD,
        which counts no steps, unless somebody's hooks want to be called in each.

        >>> import torch
        >>> base = SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        >>> Fixed.of(base).key[:2]
        [0.1, 0]
        """
        if not says_it_can(base) or _wants_to_be_called(base):
            return None
        values = [group.get(name) for group in base.param_groups for name in base.defaults]
        state: list[Any] = []
        for entry in base.state.values():
            if not isinstance(entry, dict):
                return None
            state += entry.values()
        tensors = [value for value in state if isinstance(value, Tensor)]
        are_there = len(tensors) == len(state)
        if not are_there or any(scalars.is_host(tensor.device) for tensor in tensors):
            return None
        if not all(map(_is_plain, values)):
            return None
        return cls([*values, *map(Tensor.data_ptr, tensors)], tensors)


def says_it_can(base: Optimizer) -> bool:
    """Whether it is torch's own: who wraps or inherits from one may do more in Python."""
    if not type(base).__module__.startswith("torch.optim."):
        return False
    return type(base) is SGD or all(group.get("capturable") for group in base.param_groups)


def _wants_to_be_called(base: Optimizer) -> bool:
    """Whether somebody has put something of his around its step."""
    return bool(
        "step" in vars(base)
        or base._optimizer_step_pre_hooks
        or base._optimizer_step_post_hooks
        or of_torch._global_optimizer_pre_hooks
        or of_torch._global_optimizer_post_hooks
    )


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, PLAIN)
