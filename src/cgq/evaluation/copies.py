"""Copies of many tensors with few kernels, and with few questions from the second time on."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cgq.rules import scalars

# Of these one kernel copies many tensors. Optimizers count steps in many tensors on the host.
PLAIN = Tensor, nn.Parameter
FOREACH = {torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64}


Kind = tuple[Any, ...]
"""What tensors that are copied together have in common."""
KEPT, ALONE = ("kept",), ("alone",)  # of which there is no copy; which are copied one by one


class Kinds(NamedTuple):
    """Which of some tensors are copied together, by their places in the list."""

    each: list[Kind]
    stacked: list[list[int]]
    """Lone numbers on the host."""
    joined: list[list[int]]
    alone: list[int]


class Copies(Sequence["Tensor | None"]):
    """Values of tensors as they were; None of one that is not writable.

    Those that were copied into one piece of memory are found there when one is asked for: mostly
    nobody does.
    """

    def __init__(self, count: int) -> None:
        self._values: list[Tensor | None] = [None] * count
        self._joined: list[tuple[list[int], list[torch.Size], Tensor]] = []

    def put(self, indices: Sequence[int], values: Sequence[Tensor]) -> None:
        """Keep these of the tensors with these numbers."""
        for index, value in zip(indices, values, strict=True):
            self._values[index] = value

    def join(self, indices: list[int], tensors: list[Tensor]) -> None:
        """Copy these into one piece of memory."""
        shapes = [tensor.shape for tensor in tensors]
        whole = torch._C._nn.flatten_dense_tensors(tensors)
        # Of one tensor that is no copy.
        self._joined.append((indices, shapes, whole.clone() if len(tensors) == 1 else whole))

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> Tensor | None: ...

    @overload
    def __getitem__(self, index: slice) -> list[Tensor | None]: ...

    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor | None] | None:
        for indices, shapes, whole in self._joined:
            pieces = torch.split(whole, [shape.numel() for shape in shapes])
            views = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
            self.put(indices, views)
        self._joined = []
        return self._values[index]


class Copier:
    """Copies tensors, and remembers of which kind they are for as long as they live.

    To ask a tensor for its kind takes the host longer than to launch its part of a copy. And on the
    host, new memory takes longer than the copying: copies there last until the next are made.

    >>> copier, tensors = Copier(), [torch.ones(2), torch.tensor(3.0)]
    >>> list(copier.copies(tensors)), copier.copies(tensors)[1] is tensors[1]
    ([tensor([1., 1.]), tensor(3.)], False)
    """

    def __init__(self) -> None:
        self._known: list[weakref.ref[Tensor]] = []
        self._kinds = Kinds([], [], [], [])
        self._lent: dict[int, Tensor] = {}  # memory on the host

    @torch.no_grad()
    def copies(self, tensors: Sequence[Tensor]) -> Copies:
        """Copies of the tensors."""
        if not self._knows(tensors):
            self._kinds, self._known = kinds_of(tensors), list(map(weakref.ref, tensors))
            self._lent = {}
        copies = Copies(len(tensors))
        for index in self._kinds.alone:
            copies.put([index], [self._copy(index, tensors[index])])
        for indices in self._kinds.stacked:
            copies.put(indices, torch.stack([tensors[index] for index in indices]).unbind())
        for indices in self._kinds.joined:
            copies.join(indices, [tensors[index] for index in indices])
        return copies

    def writable(self) -> list[bool]:
        """Of each tensor that was copied last, whether it is writable."""
        return [kind is not KEPT for kind in self._kinds.each]

    def _knows(self, tensors: Sequence[Tensor]) -> bool:
        """Whether each is of the kind of the one that was in its place, mostly itself."""
        known, kinds = self._known, self._kinds.each
        if len(known) != len(tensors):
            return False
        for index, is_same in enumerate(map(is_, tensors, [ref() for ref in known])):
            if not is_same:  # as a number that each step makes anew
                if kind_of(tensors[index]) != kinds[index]:
                    return False
                known[index] = weakref.ref(tensors[index])
                self._lent.pop(index, None)
        return True

    def _copy(self, index: int, tensor: Tensor) -> Tensor:
        lent = self._lent.get(index)
        if lent is not None and lent.shape == tensor.shape and lent.stride() == tensor.stride():
            return lent.copy_(tensor)
        copy = tensor.clone()
        if type(tensor) in PLAIN and scalars.is_host(tensor.device):
            self._lent[index] = copy
        return copy


def kinds_of(tensors: Sequence[Tensor]) -> Kinds:
    """How each of the tensors is best copied; none that is not writable."""
    each = list(map(kind_of, tensors))
    alike: dict[Kind, list[int]] = {}
    for index, kind in enumerate(each):
        alike.setdefault(kind, []).append(index)
    alike.pop(KEPT, None)
    alone = alike.pop(ALONE, [])
    groups: tuple[list[list[int]], list[list[int]]] = ([], [])
    for (on_host, *_), indices in alike.items():
        groups[not on_host].append(indices)
    return Kinds(each, *groups, alone)


def kind_of(tensor: Tensor) -> Kind:
    """Whether it is on the host, and what else one kernel needs to have in common."""
    if not _is_writable(tensor):
        return KEPT
    device, dtype = tensor.device, tensor.dtype
    plain = type(tensor) in PLAIN and tensor.layout is torch.strided
    on_host = scalars.is_host(device)
    together = plain and (tensor.dim() == 0 if on_host else dtype in FOREACH)
    return (on_host, device, dtype) if together else ALONE


def _is_writable(tensor: Tensor) -> bool:
    """Whether it has a value (a lazy module's has none yet) that can be put back in place.

    That of nested tensors cannot: none is written to in place.
    """
    if (type(tensor) not in PLAIN and is_lazy(tensor)) or tensor.is_inference() or tensor.is_nested:
        return False
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return True
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return not any(size > 1 and stride == 0 for size, stride in sides)  # expanded
