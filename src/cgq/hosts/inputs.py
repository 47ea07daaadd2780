"""What a host gives to a pass, to be given again as it was."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from cgq.engine.messages import WRITTEN
from cgq.engine.optimizer import SearchOptimizer

Output = TypeVar("Output")


class Inputs:
    """The arguments of a pass, which may take entries out of a batch or put others in.

    The first pass gets the host's own containers, in which its hooks may look for what was put
    there. Every later one gets copies of them as they were at first, with the same tensors.

    >>> batch = {"x": torch.ones(2), "labels": [0, 1]}
    >>> inputs = Inputs(batch)
    >>> batch.pop("labels")
    [0, 1]
    >>> inputs.given_to(lambda batch: batch.pop("labels"))
    [0, 1]
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        leaves: list[Any] = []
        self._arguments = _with_own_containers((args, kwargs), leaves.append)
        self._tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._versions = list(map(_version, self._tensors))

    def given_to(self, again: Callable[..., Output]) -> Output:
        """What one more pass gives."""
        args, kwargs = _with_own_containers(self._arguments)
        return again(*args, **kwargs)

    def tell_if_written(self, optimizer: SearchOptimizer) -> None:
        """Warn, once for an optimizer, if the first pass has written to a tensor."""
        if list(map(_version, self._tensors)) != self._versions:
            optimizer._messages.give(WRITTEN)


def _with_own_containers(value: Any, see: Callable[[Any], object] = lambda leaf: None) -> Any:
    """The same leaves, each of which is seen, in containers that nobody else has."""

    def own(leaf: Any) -> Any:
        if isinstance(leaf, (dict, UserDict)):  # of a kind that tree_map does not know
            copied = copy(leaf)
            copied.update(_with_own_containers(dict(leaf), see))
            return copied
        see(leaf)
        return leaf

    # Of a Size, tree_map would make a tuple.
    return tree_map(own, value, is_leaf=lambda part: isinstance(part, torch.Size))


def _version(tensor: Tensor) -> int:
    """Another one once it was written to; nothing writes to inference tensors, which have none."""
    return 0 if tensor.is_inference() else tensor._version
