"""The trained parameters as one vector: a flat buffer per device and dtype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cgq.rules import scalars
from cgq.vectors.sharding import Reduce, local
from cgq.vectors.shared_memory import refuse_shared

# On an accelerator one kernel serves many tensors, up to what a 32-bit index reaches.
GATHERED = 1 << 30
# On a host an inner product of vectors that start between two cache lines can take ten times as
# long. So spans there begin at multiples of so many elements; what lies between stays zero.
LINE = 64
# A tensor of so many elements takes a host longer to call for than to compute with. Where a group
# has many of them, they lie side by side there and are handled at once, as far as they stay in the
# cache together. A few stay apart, though together they would save some 25 µs a step: then a small
# network's sums are made in the order in which an accelerator was seen to have the same bits.
SMALL = 1 << 14
MANY = 16
TOGETHER = 1 << 18
# So much is worked on at a time: it is still in the cache when the next operation asks for it.
PIECE = 1 << 20
ALL = slice(None)


def real(tensor: Tensor) -> Tensor:
    """What this rank holds of the tensor, a complex one as pairs of real numbers.

    It is a copy only of a gradient that is a conjugate: `refuse_shared` lets no parameter be one.
    """
    tensor = local(tensor)
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def with_gradients(groups: list[dict[str, Any]]) -> tuple[list[int], list[Tensor]]:
    """The parameters that have a gradient, and the number of each one's group."""
    numbers, params = list[int](), list[Tensor]()
    for number, group in enumerate(groups):
        found = [
            (param, grad.layout) for param in group["params"] if (grad := param.grad) is not None
        ]
        if {layout for _, layout in found} - {torch.strided}:
            raise RuntimeError(
                "A line search does not support sparse gradients: inner products need them dense. "
                "Use sparse=False in the embedding, or give it another optimizer."
            )
        numbers += len(found) * [number]
        params += [param for param, _ in found]
    return numbers, params


class Span(NamedTuple):
    """Neighbours in one block that belong to one group and are handled by one kernel."""

    block: int
    elements: slice
    group: int
    members: list[int]


class Buffer(NamedTuple):
    """A vector's memory, seen per block, per span and per parameter."""

    blocks: list[Tensor]
    parts: list[Tensor]
    views: list[Tensor]


class Layout:
    """Where each parameter lies in the vector.

    A parameter's place has its strides, so that channels-last weights meet channels-last memory.
    Of a sharded parameter this rank's part has a place; `reduce` then adds up inner products.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        groups: Sequence[int],
        reduce: Reduce | None = None,
    ) -> None:
        self.reduce = reduce
        self.params = list(params)
        self.ids = list(map(id, self.params))
        self.dtypes = [param.dtype for param in self.params]
        self.weights = sum(param.numel() for param in self.params)  # of all ranks
        self.groups = list(groups)
        places: dict[tuple[int, torch.device], list[int]] = {}
        for index, (param, group) in enumerate(zip(self.params, self.groups, strict=True)):
            places.setdefault((group, param.device), []).append(index)
        # The parameters of one group on one device: what a foreach kernel can move at once.
        self.sections = [(group, members) for (group, _), members in places.items()]
        self.spans: list[Span] = []
        self.sizes: list[int] = []
        self._kinds: list[tuple[torch.device, torch.dtype]] = []
        self._shapes: list[tuple[torch.Size, tuple[int, ...]]] = []
        members: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        refuse_shared(self.params)
        for index, param in enumerate(self.params):
            values = real(param.detach())
            self._shapes.append((values.shape, torch.empty_like(values, device="meta").stride()))
            members.setdefault((values.device, values.dtype), []).append(index)
        self._offsets = [0] * len(self.params)
        self.members = list(members.values())
        for block, ((device, dtype), indices) in enumerate(members.items()):
            self._kinds.append((device, dtype))
            self.sizes.append(self._place(block, device, indices))
        # The group of each number that makes up an inner product.
        self.dot_groups = [span.group for span in self.spans]
        if reduce is not None:
            self.dot_groups = sorted(set(self.dot_groups))
        # Where sums are made: an accelerator, if any parameter is on one.
        self.device = min((device for device, _ in self._kinds), key=scalars.is_host)
        self.on_host = scalars.is_host(self.device)
        self.range = min(torch.finfo(dtype).max for _, dtype in self._kinds)
        self._are_values = all(real(param) is param for param in self.params)
        # Narrow numbers are widened in vectors as long as theirs.
        self.is_plain = (
            self._are_values
            and reduce is None
            and len({device for device, _ in self._kinds}) == 1
            and all(dtype in (torch.float32, torch.float64) for _, dtype in self._kinds)
        )
        """Whether it is whole real tensors on one device, of which no work takes long copies."""
        self.is_single = self.is_plain and {*self.dtypes} == {torch.float32}
        """Whether moreover all of them are float32."""

    def _place(self, block: int, device: torch.device, indices: list[int]) -> int:
        on_host = scalars.is_host(device)
        limit, unit = (TOGETHER, LINE) if on_host else (GATHERED, 1)
        sizes = [shape.numel() for shape, _ in self._shapes]
        crowds = Counter(self.groups[index] for index in indices if sizes[index] <= SMALL)

        def is_alone(index: int) -> bool:
            return on_host and (sizes[index] > SMALL or crowds[self.groups[index]] < MANY)

        offset, last = 0, None
        for index in sorted(indices, key=lambda i: (self.groups[i], is_alone(i))):
            group, size = self.groups[index], sizes[index]
            joins = last is not None and last.group == group and not is_alone(index)
            if last is not None and joins and offset + size - last.elements.start <= limit:
                start, members = last.elements.start, [*last.members, index]
                self.spans.pop()
            else:
                offset = start = -(-offset // unit) * unit
                members = [index]
            self._offsets[index] = offset
            offset += size
            last = Span(block, slice(start, offset), group, members)
            self.spans.append(last)
        return offset

    def values(self) -> list[Tensor]:
        """The parameters themselves, complex ones as pairs of real numbers."""
        return self.params if self._are_values else [real(param) for param in self.params]

    def gradients(self) -> list[Tensor]:
        """Theirs, which they must all have, in the same form."""
        grads: list[Any] = [param.grad for param in self.params]
        return grads if self._are_values else list(map(real, grads))

    @property
    def neighbours(self) -> tuple[tuple[int, int], int]:
        """Two parameters of one block, and how many bytes apart their places begin."""
        filled = [[i for i in each if self._shapes[i][0].numel()] for each in self.members]
        first, second = next((each[:2] for each in filled if len(each) > 1), (0, 0))
        size = real(self.params[first].detach()).element_size()
        return (first, second), size * (self._offsets[second] - self._offsets[first])

    def has_no_gaps(self, index: int, value: Tensor) -> bool:
        """Whether a parameter lies in memory as its place in a vector does, which has none."""
        return _are_alike(value.shape, value.stride(), self._shapes[index][1])

    def zeros(self) -> Buffer:
        """A new vector of zeros."""
        return self._buffer(torch.zeros)

    def empty(self) -> Buffer:
        """A new vector whose values are yet to be written."""
        return self._buffer(torch.empty)

    def gathered(self, tensors: Sequence[Tensor]) -> Buffer:
        """A new vector with the values of `tensors`, one per parameter."""
        buffer = self.empty()
        torch._foreach_copy_(buffer.views, list(tensors))
        return buffer

    def _buffer(self, make: Callable[..., Tensor]) -> Buffer:
        blocks = [
            make(size, device=device, dtype=dtype)
            for size, (device, dtype) in zip(self.sizes, self._kinds, strict=True)
        ]
        return Buffer(blocks, self.parts_of(blocks), self.views_of(blocks))

    def parts_of(self, blocks: list[Tensor]) -> list[Tensor]:
        """The spans within blocks."""
        return [blocks[span.block][span.elements] for span in self.spans]

    def views_of(self, blocks: list[Tensor]) -> list[Tensor]:
        """The parameters' places within blocks."""
        views = [blocks[0]] * len(self.params)
        for block, members in zip(blocks, self.members, strict=True):
            for index in members:
                shape, strides = self._shapes[index]
                offset = block.storage_offset() + self._offsets[index]
                views[index] = block.as_strided(shape, strides, offset)
        return views

    def pieces(self) -> Iterator[tuple[int, slice]]:
        """What to work on at a time: numbers of spans, and elements in them, the last first.

        On an accelerator each is a whole span: there is no cache to stay in, and kernels cost.
        """
        for number in reversed(range(len(self.spans))):
            _, elements, _, members = self.spans[number]
            size = elements.stop - elements.start
            if size <= PIECE or len(members) > 1 or not self.on_host:
                yield number, ALL
            else:
                for start in reversed(range(0, size, PIECE)):
                    yield number, slice(start, start + PIECE)

    def parts(self, tensors: Sequence[Tensor], like: Sequence[Tensor]) -> Iterable[Tensor]:
        """Each span of `tensors` (one per parameter) as one-dimensional tensor."""
        for span in self.spans:
            flat = [_flattened(tensors[index], like[index]) for index in span.members]
            yield flat[0] if len(flat) == 1 else torch.cat(flat)


def cut(part: Tensor, elements: slice) -> Tensor:
    """These elements of a span."""
    return part if elements is ALL else part[elements]


def _flattened(tensor: Tensor, like: Tensor) -> Tensor:
    """The elements of `tensor` in the order in which `like` keeps them in memory."""
    if like.is_contiguous():  # by far the most frequent, and quickly done
        return tensor.contiguous().view(-1)
    if not lie_alike(tensor, like):
        tensor = torch.empty_like(like).copy_(tensor)
    return in_a_row(tensor)


def in_a_row(tensor: Tensor) -> Tensor:
    """Its memory as one-dimensional tensor, if it lies like one of a vector's views."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def lie_alike(tensor: Tensor, like: Tensor) -> bool:
    """Whether their strides differ only where there is one element, or none."""
    return _are_alike(tensor.shape, tensor.stride(), like.stride())


def _are_alike(shape: torch.Size, strides: tuple[int, ...], others: tuple[int, ...]) -> bool:
    if strides == others:
        return True
    sides = zip(shape, strides, others, strict=True)
    return all(mine == its for size, mine, its in sides if size > 1)
