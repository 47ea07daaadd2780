"""One form of keep and restore, for module buffers and for a base optimizer's state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cgq.evaluation.copies import FOREACH, Copier
from cgq.rules import scalars

# The kernels of BatchNorm write running statistics without raising their version, and so do all who
# write to `.data`. Of tables and masks so long that is looked for on the host, where it takes no
# longer than to write them: they may lie in memory that nobody can write to.
LONG = 1 << 16
COMPARABLE = FOREACH | {torch.bool, torch.uint8, torch.int32}
# What torch's schedulers note on an optimizer, rolled back or not.
LASTING = ("_opt_called",)
# Most of what an optimizer's groups hold.
ATOMS = {type(None), bool, int, float, str}


class Snapshot:
    """Dictionaries and lists as they were, with the values of the tensors in them.

    Containers and tensors are restored in place, so that whoever refers to them goes on. What
    optimizers inside keep counts too, in objects within their state as well; other objects are kept
    as references.

    Args:
        places: dictionaries, lists or optimizers.
        without: tensors whose values somebody else restores.
        copier: that of earlier snapshots of the same places, which knows most of the tensors.

    >>> state = {"mean": torch.ones(2), "steps": [1]}
    >>> snapshot = Snapshot([state])
    >>> state["mean"].zero_(), state["steps"].append(2), state.update(new=3)
    (tensor([0., 0.]), None, None)
    >>> snapshot.restore()
    >>> state
    {'mean': tensor([1., 1.]), 'steps': [1]}
    """

    def __init__(
        self, places: Iterable[Any], without: Iterable[Tensor] = (), copier: Copier | None = None
    ) -> None:
        self._containers: list[tuple[Any, Any]] = []
        others = set(map(id, without))
        self._seen = set(others)
        self._found: dict[int, Tensor] = {}  # by their numbers, each once
        self._empty: list[dict[Any, Any]] = []  # as most modules' buffers are
        self._states: set[int] = set()  # of the optimizers inside
        for place in places:
            if type(place) is dict and not place:
                self._empty.append(place)
            else:
                self._note(place)
        for number in others & self._found.keys():
            del self._found[number]
        self._tensors = list(self._found.values())
        self._values: Sequence[Tensor | None] = ()
        self._versions: list[int] = []
        if self._tensors:
            self._copy(copier or Copier())

    def _copy(self, copier: Copier) -> None:
        self._values = copier.copies(self._tensors)
        # One that cannot be written to may have no version either.
        self._versions = [
            tensor._version if is_writable else 0
            for tensor, is_writable in zip(self._tensors, copier.writable(), strict=True)
        ]

    def _note(self, place: Any) -> None:
        """Note the containers and the tensors within."""
        found, seen, waiting = self._found, self._seen, [(place, False)]
        while waiting:
            value, is_state = waiting.pop()
            if id(value) in seen:
                continue
            # Most that an optimizer keeps are plain: tensors and numbers, in hundreds of
            # dictionaries. To ask what else they may be takes longer than to note them.
            if type(value) is not dict:
                if isinstance(value, Tensor):
                    found[id(value)] = value
                    continue
                if isinstance(value, Optimizer) or (is_state and _keeps_state(value)):
                    self._states.add(id(getattr(value, "state", None)))
                    seen.add(id(value))
                    value = vars(value)
                if not isinstance(value, (dict, list, set, deque)) and type(value) is not tuple:
                    continue
            if type(value) is not tuple:
                seen.add(id(value))
                self._containers.append((value, value.copy()))
            is_state = is_state or id(value) in self._states
            for entry in value.values() if isinstance(value, dict) else value:
                kind = type(entry)
                if kind is Tensor:
                    found[id(entry)] = entry
                elif kind not in ATOMS and id(entry) not in seen:
                    waiting.append((entry, is_state))

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        for place in self._empty:
            place.clear()
        for container, entries in self._containers:
            if isinstance(container, list):
                container[:] = entries
            elif isinstance(container, set):
                container.clear()
                container.update(entries)
            elif isinstance(container, deque):
                container.clear()
                container.extend(entries)
            elif (container or entries) and not _same_entries(container, entries):
                lasting = {name: container[name] for name in LASTING if name in container}
                container.clear()
                container.update(entries | lasting)
        alike: dict[Any, list[int]] = {}  # one foreach kernel takes tensors of one kind
        for index, tensor in enumerate(self._tensors):
            if self._may_differ(index):
                alone = index if tensor.is_conj() or tensor.is_neg() else None
                alike.setdefault((tensor.device, tensor.dtype, alone), []).append(index)
        for (*_, alone), indices in alike.items():
            now, then = [self._tensors[i] for i in indices], [self._values[i] for i in indices]
            values = [value for value in then if value is not None]
            if alone is None:
                torch._foreach_copy_(now, values)
            else:  # of which no foreach kernel takes any
                now[0].copy_(values[0])
            for index, tensor in zip(indices, now, strict=True):
                self._versions[index] = tensor._version

    def _may_differ(self, index: int) -> bool:
        """Whether someone may have written to the tensor since; a resized one is restored here."""
        tensor, value = self._tensors[index], self._values[index]
        if value is None:
            return False
        if value.shape != tensor.shape:
            tensor.set_(value.clone())  # type: ignore[call-overload]
            return False
        if tensor.numel() < LONG or tensor._version != self._versions[index]:
            return True
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return False
        comparable = scalars.is_host(tensor.device) and tensor.dtype in COMPARABLE
        return not (comparable and torch.equal(tensor, value))

    def restore_where(self, lost: Tensor) -> None:
        """Restore the tensors' values where `lost` is true, without the host looking at it."""
        alike: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        values = dict(zip(map(id, self._tensors), self._values, strict=True))
        for container, entries in self._containers:
            for name, then in entries.items():
                now, saved = container.get(name), values.get(id(then))
                if now is not None and saved is not None and saved.shape == now.shape:
                    alike.setdefault((now.device, now.dtype), []).append((now, saved))
        for pairs in alike.values():
            now, then = (torch.cat([pair[i].reshape(-1) for pair in pairs]) for i in (0, 1))
            mixed = torch.where(lost.to(now.device), then, now)
            tensors = [tensor for tensor, _ in pairs]
            pieces = torch.split(mixed, [tensor.numel() for tensor in tensors])
            torch._foreach_copy_(
                tensors, [v.view(t.shape) for v, t in zip(pieces, tensors, strict=True)]
            )


def _keeps_state(value: Any) -> bool:
    """Whether something in an optimizer's state may keep more of it in its attributes."""
    return hasattr(value, "__dict__") and not callable(value)


def buffers(module: nn.Module) -> Any:
    """Where a module keeps its buffers, as a dictionary."""
    held = module._buffers
    # Most are plain; to ask for a script module takes longer.
    if type(held) is not dict and isinstance(module, torch.jit.ScriptModule):
        return _ScriptBuffers(module)
    return held


class _ScriptBuffers(dict[str, Tensor]):
    """A script module's buffers, which are in no dictionary of Python's."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module.named_buffers(recurse=False))
        self._module = module

    def keys(self) -> Any:
        super().clear()
        super().update(self._module.named_buffers(recurse=False))
        return super().keys()

    def clear(self) -> None:
        """A script module's names are fixed."""

    def update(self, entries: Any) -> None:  # type: ignore[override]
        for name, tensor in entries.items():
            setattr(self._module, name, tensor)


def _same_entries(container: dict[Any, Any], entries: dict[Any, Any]) -> bool:
    return container.keys() == entries.keys() and all(
        container[name] is entry for name, entry in entries.items()
    )
