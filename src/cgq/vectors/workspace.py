"""The vectors a step works with, and parameters that lie side by side as one more of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from cgq.vectors.cuda_graph import recorder_for
from cgq.vectors.layout import Buffer, Layout
from cgq.vectors.recording import Recorder, Recording


class Workspace:
    """Two vectors of all parameters, one for the direction, and the parameters themselves."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.direction = layout.zeros()
        self.scratch = layout.zeros()
        self.parameters, self.gradients = Contiguous(layout), Contiguous(layout)
        self.recorder: Recorder | None = recorder_for(layout)
        self.outset, self.second, self.landing = (Recording(self.recorder) for _ in range(3))
        """What a search does before its first measurement, before the next, and at last."""

    @cached_property
    def start(self) -> Buffer:
        """Where θ is kept in memory that stays."""
        return self.layout.empty()

    @cached_property
    def spare(self) -> Buffer:
        """One vector more, for a search: memory that stays need not be taken anew."""
        return self.layout.empty()

    def own_memory(self) -> Buffer | None:
        """The parameters as one vector in their own memory; None: they are apart."""
        return self.parameters.of(self.layout.values())

    def place_for_points(self) -> Buffer | None:
        """Memory that stays for points of a line; None: the parameters' own will do."""
        return self.spare if self.own_memory() is None else None

    def copied_parameters(self) -> Buffer:
        """A copy of the parameters as one vector."""
        own = self.own_memory()
        if own is None:
            return self.layout.gathered(self.layout.values())
        blocks = [block.clone() for block in own.blocks]
        return Buffer(blocks, self.layout.parts_of(blocks), [])

    def kept_parameters(self) -> Buffer:
        """The same in memory that stays."""
        own = self.own_memory()
        if own is None:
            torch._foreach_copy_(self.start.views, self.layout.values())
        else:
            torch._foreach_copy_(self.start.blocks, own.blocks)
        return self.start


class Contiguous:
    """Finds vectors whose parts lie in memory just as a layout places them.

    A program may keep its parameters or gradients in flat memory to save kernels on an
    accelerator. Where it does, this spares the gathering. What was found last is remembered.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._neighbours, self._gap = layout.neighbours
        self.places: list[object] = []
        """Where the tensors of the last call lie."""
        self._found: Buffer | None = None

    def of(self, tensors: Sequence[Tensor]) -> Buffer | None:
        """The vector of `tensors`, one per parameter, in their own memory; None: they are apart."""
        places: list[object] = [*map(Tensor.data_ptr, tensors), *map(Tensor.stride, tensors)]
        if places != self.places:
            self.places, self._found = places, self._buffer(tensors)
        return self._found

    def whole(self, tensors: Sequence[Tensor]) -> Buffer | None:
        """As `of`, where nobody asks for the places of tensors that are apart.

        Gradients that backward() makes mostly are, and elsewhere in each step: two of them show it.
        """
        first, second = self._neighbours
        gap = tensors[second].data_ptr() - tensors[first].data_ptr()
        return self.of(tensors) if gap == self._gap else None

    def _buffer(self, tensors: Sequence[Tensor]) -> Buffer | None:
        views = self._layout.views_of
        blocks = [
            _block([tensors[index] for index in members], size)
            for members, size in zip(self._layout.members, self._layout.sizes, strict=True)
        ]
        found = [block for block in blocks if block is not None]
        if len(found) < len(blocks):
            return None
        for tensor, view in zip(tensors, views(found), strict=True):
            same = tensor.data_ptr() == view.data_ptr() and tensor.stride() == view.stride()
            if not same or tensor.dtype != view.dtype:
                return None
        return Buffer(found, self._layout.parts_of(found), list(tensors))


def _block(tensors: list[Tensor], size: int) -> Tensor | None:
    """The memory from the first tensor on, if there is as much of it."""
    first = min(tensors, key=Tensor.data_ptr)
    behind = first.untyped_storage().nbytes() // first.element_size() - first.storage_offset()
    return None if behind < size else first.as_strided((size,), (1,), first.storage_offset())
