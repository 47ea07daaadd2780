"""Which bases can be recorded, and what has to stay as it is for that."""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as of_torch

from cgq.rules import scalars

PLAIN = bool, int, float, str, type(None)  # what a key can hold by value


class Fixed(NamedTuple):
    """What a recording of a base's step takes to stay as it is."""

    settings: list[object]
    places: list[int]
    tensors: list[Tensor]
    """All of its state."""

    @classmethod
    def of(cls, base: Optimizer, last: Fixed | None = None) -> Fixed | None:
        """That of this base; None: its step cannot be recorded.

        It can be of a base of torch's own that says so by `capturable=True`, and of torch's SGD,
        which counts no steps, unless somebody's hooks want to be called in each. State that is
        where it was in the step before, as `last` has it, need not be looked at again.

        >>> import torch
        >>> base = SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        >>> Fixed.of(base).settings[:2]
        [0.1, 0]
        """
        if not says_it_can(base) or _wants_to_be_called(base):
            return None
        settings = [group.get(name) for group in base.param_groups for name in base.defaults]
        if not all(map(_is_plain, settings)):
            return None
        entries = list(base.state.values())
        if not all(issubclass(kind, dict) for kind in set(map(type, entries))):
            return None
        state: list[Any] = list(chain.from_iterable(map(dict.values, entries)))
        if last is not None and last.is_all_of(state):
            return last._replace(settings=settings)
        if not all(isinstance(value, Tensor) for value in state):
            return None
        if any(scalars.is_host(tensor.device) for tensor in state):
            return None
        return cls(settings, list(map(Tensor.data_ptr, state)), state)

    def is_all_of(self, state: list[Any]) -> bool:
        """Whether a base's state is this still, and where it was."""
        is_same = len(state) == len(self.tensors) and all(map(is_, state, self.tensors))
        return is_same and self.places == list(map(Tensor.data_ptr, self.tensors))


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
