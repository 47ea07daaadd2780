"""One form of keep and restore, for module buffers and for a base optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from cgq.rules import scalars

# The kernels of BatchNorm write running statistics without raising their version. So the version
# is believed only of tables and masks too long to be statistics, which would be costly to copy.
LONG = 1 << 16
# What torch's schedulers note on an optimizer, rolled back or not.
LASTING = ("_opt_called",)
# Of these one kernel copies many tensors. Optimizers count steps in many tensors on the host.
PLAIN = Tensor, nn.Parameter
FOREACH = {torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64}


# Most of what an optimizer's groups hold.
ATOMS = {type(None), bool, int, float, str}


class Snapshot:
    """Dictionaries and lists as they were, with the values of the tensors in them.

    Containers and tensors are restored in place, so that whoever refers to them goes on. What
    optimizers inside keep counts too; other objects are kept as references.

    Args:
        places: dictionaries, lists or optimizers.
        without: tensors whose values somebody else restores.

    >>> state = {"mean": torch.ones(2), "steps": [1]}
    >>> snapshot = Snapshot([state])
    >>> state["mean"].zero_(), state["steps"].append(2), state.update(new=3)
    (tensor([0., 0.]), None, None)
    >>> snapshot.restore()
    >>> state
    {'mean': tensor([1., 1.]), 'steps': [1]}
    """

    def __init__(self, places: Iterable[Any], without: Iterable[Tensor] = ()) -> None:
        self._containers: list[tuple[Any, Any]] = []
        self._seen = set(map(id, without))
        tensors: list[Tensor] = []
        for place in places:
            if type(place) is dict and not place:  # as most modules' buffers
                self._containers.append((place, {}))
            else:
                tensors += self._noted(place)
        self._saved = {
            id(tensor): _Saved(tensor, value)
            for tensor, value in zip(tensors, copies(tensors), strict=True)
        }

    def _noted(self, place: Any) -> list[Tensor]:
        """Note the containers within, and give the tensors."""
        tensors: list[Tensor] = []
        seen, waiting = self._seen, [place]
        while waiting:
            value = waiting.pop()
            kind = type(value)
            if kind in ATOMS or id(value) in seen:
                continue
            if isinstance(value, Tensor):
                seen.add(id(value))
                tensors.append(value)
                continue
            if isinstance(value, Optimizer):
                seen.add(id(value))
                value = vars(value)
            if isinstance(value, (dict, list)):
                seen.add(id(value))
                self._containers.append((value, value.copy()))
            elif kind is not tuple:
                continue
            waiting += value.values() if isinstance(value, dict) else value
        return tensors

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        for container, entries in self._containers:
            if isinstance(container, list):
                container[:] = entries
            elif (container or entries) and not _same_entries(container, entries):
                lasting = {name: container[name] for name in LASTING if name in container}
                container.clear()
                container.update(entries | lasting)
        alike: dict[Any, list[_Saved]] = {}  # one foreach kernel takes tensors of one kind
        for saved in self._saved.values():
            if saved.may_differ:
                alike.setdefault((saved.tensor.device, saved.tensor.dtype), []).append(saved)
        for kind in alike.values():
            values = [each.value for each in kind if each.value is not None]
            torch._foreach_copy_([each.tensor for each in kind], values)
            for each in kind:
                each.is_restored()

    def restore_where(self, lost: Tensor) -> None:
        """Restore the tensors' values where `lost` is true, without the host looking at it."""
        alike: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        for container, entries in self._containers:
            for name, then in entries.items():
                now, saved = container.get(name), self._saved.get(id(then))
                if now is None or saved is None or saved.value is None:
                    continue
                if saved.value.shape == now.shape:
                    alike.setdefault((now.device, now.dtype), []).append((now, saved.value))
        for pairs in alike.values():
            now, then = (torch.cat([pair[i].reshape(-1) for pair in pairs]) for i in (0, 1))
            mixed = torch.where(lost.to(now.device), then, now)
            tensors = [tensor for tensor, _ in pairs]
            values = torch.split(mixed, [tensor.numel() for tensor in tensors])
            torch._foreach_copy_(
                tensors, [v.view(t.shape) for v, t in zip(values, tensors, strict=True)]
            )


class _Saved:
    """A tensor and the value it had; None: it cannot be written to."""

    def __init__(self, tensor: Tensor, value: Tensor | None) -> None:
        self.tensor, self.value = tensor, value
        self._version = 0 if value is None else tensor._version

    @property
    def may_differ(self) -> bool:
        """Whether someone may have written to the tensor since; a resized one is restored here."""
        if self.value is None:
            return False
        if self.value.shape != self.tensor.shape:
            self.tensor.set_(self.value.clone())  # type: ignore[call-overload]
            return False
        return self.tensor.numel() < LONG or self.tensor._version != self._version

    def is_restored(self) -> None:
        self._version = self.tensor._version


def buffers(module: nn.Module) -> Any:
    """Where a module keeps its buffers, as a dictionary."""
    if isinstance(module, torch.jit.ScriptModule):
        return _ScriptBuffers(module)
    return module._buffers


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


@torch.no_grad()
def copies(tensors: list[Tensor]) -> list[Tensor | None]:
    """Copies of the tensors; None of one that is not writable."""
    copies: list[Tensor | None] = [None] * len(tensors)
    alike: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if not _is_writable(tensor):
            continue
        device, dtype = tensor.device, tensor.dtype
        plain = type(tensor) in PLAIN and tensor.layout is torch.strided
        on_host = scalars.is_host(device)
        if plain and (tensor.dim() == 0 if on_host else dtype in FOREACH):
            alike.setdefault((device, dtype, on_host), []).append(index)
        else:
            copies[index] = tensor.clone()
    for (_, _, on_host), indices in alike.items():
        same = [tensors[index] for index in indices]
        # There is no foreach clone; a product with one is exact.
        copied = torch.stack(same).unbind() if on_host else torch._foreach_mul(same, 1)
        for index, copy in zip(indices, copied, strict=True):
            copies[index] = copy
    return copies


def _is_writable(tensor: Tensor) -> bool:
    """Whether it has a value (a lazy module's has none yet) that can be changed in place."""
    if (type(tensor) not in PLAIN and is_lazy(tensor)) or tensor.is_inference():
        return False
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return True
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return not any(size > 1 and stride == 0 for size, stride in sides)  # expanded


def _same_entries(container: dict[Any, Any], entries: dict[Any, Any]) -> bool:
    return container.keys() == entries.keys() and all(
        container[name] is entry for name, entry in entries.items()
    )
