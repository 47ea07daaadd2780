"""Honest re-evaluation: what a forward pass draws and changes besides its result.

A probe must see the same dropout masks and module buffers as the first pass, and the program must
go on as if that first pass had been the only one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cgq import generators
from cgq.scalars import is_host

# The kernels of BatchNorm write running statistics without raising their version. So the version
# is believed only of tables and masks too long to be statistics, which would be costly to copy.
LONG = 1 << 16
# Of these one kernel copies many tensors.
FOREACH = {torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64}


class _Saved:
    """A buffer as it was: the tensor in its place, and the value it had."""

    def __init__(self, tensor: Tensor, value: Tensor | None) -> None:
        self.tensor = tensor
        self.value = value
        self._version = 0 if self.value is None else tensor._version

    @property
    def may_differ(self) -> bool:
        """Whether someone may have written to the tensor since."""
        if self.value is None:
            return False
        return self.tensor.numel() < LONG or self.tensor._version != self._version

    def is_restored(self) -> None:
        self._version = self.tensor._version


def _is_writable(tensor: Tensor) -> bool:
    """Whether it has a value (a lazy module's has none yet) that can be changed in place."""
    if is_lazy(tensor) or tensor.is_inference():
        return False
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return True
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return not any(size > 1 and stride == 0 for size, stride in sides)  # expanded


@torch.no_grad()
def copies(tensors: list[Tensor]) -> list[Tensor | None]:
    """Copies of the tensors; None of one that is not writable."""
    copies: list[Tensor | None] = [None] * len(tensors)
    alike: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if not _is_writable(tensor):
            continue
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
        if is_host(tensor.device) or not (plain and tensor.dtype in FOREACH):
            copies[index] = tensor.clone()
        else:
            alike.setdefault((tensor.device, tensor.dtype), []).append(index)
    for indices in alike.values():
        # There is no foreach clone; a product with one is exact.
        products = torch._foreach_mul([tensors[index] for index in indices], 1)
        for index, product in zip(indices, products, strict=True):
            copies[index] = product
    return copies


class _Buffers:
    """The buffers of some modules as they were."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._saved: dict[nn.Module, dict[str, _Saved]] = {module: {} for module in modules}
        places = [
            (saved, name, tensor)
            for module, saved in self._saved.items()
            for name, tensor in _buffers(module).items()
        ]
        values = copies([tensor for _, _, tensor in places])
        for (saved, name, tensor), value in zip(places, values, strict=True):
            saved[name] = _Saved(tensor, value)

    def restore(self) -> None:
        alike: dict[Any, list[_Saved]] = {}  # one foreach kernel takes tensors of one kind
        for module, saved in self._saved.items():
            now = _buffers(module)
            for name in now.keys() - saved.keys():
                del module._buffers[name]
            for name, buffer in saved.items():
                if buffer.value is not None and buffer.value.shape != buffer.tensor.shape:
                    module._buffers[name] = buffer.value.clone()  # resized: its memory is another
                    continue
                if now.get(name) is not buffer.tensor:
                    module._buffers[name] = buffer.tensor
                if buffer.may_differ:
                    alike.setdefault((buffer.tensor.device, buffer.tensor.dtype), []).append(buffer)
        for buffers in alike.values():
            values = [buffer.value for buffer in buffers if buffer.value is not None]
            torch._foreach_copy_([buffer.tensor for buffer in buffers], values)
            for buffer in buffers:
                buffer.is_restored()

    def restore_where(self, lost: Tensor) -> None:
        """Restore the values where `lost` is true, without the host looking at it."""
        alike: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        for module, saved in self._saved.items():
            if not saved:
                continue
            for name, tensor in _buffers(module).items():
                old = saved[name].value if name in saved else None
                if old is not None and old.shape == tensor.shape:
                    alike.setdefault((tensor.device, tensor.dtype), []).append((tensor, old))
        for pairs in alike.values():
            now, then = (torch.cat([pair[i].reshape(-1) for pair in pairs]) for i in (0, 1))
            mixed = torch.where(lost.to(now.device), then, now)
            kept = torch.split(mixed, [tensor.numel() for tensor, _ in pairs])
            tensors = [tensor for tensor, _ in pairs]
            torch._foreach_copy_(
                tensors, [k.view(t.shape) for k, t in zip(kept, tensors, strict=True)]
            )


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    if not module._buffers:  # as of most, and quickly told
        return {}
    if isinstance(module, torch.jit.ScriptModule):  # its dictionary is no dictionary
        return dict(module.named_buffers(recurse=False))
    return {name: tensor for name, tensor in module._buffers.items() if tensor is not None}


class World:
    """Random generators and module buffers before and after the first pass of a step.

    The modules are those inside `model`; if it is None, those called during the first pass. Of a
    compiled module the outermost call is seen and all that is inside it counts; but of a module
    compiled in place, or a compiled function, nothing is seen: these need `model`.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model
        # One function for good: a compiled module is compiled anew for each hook it meets.
        self._hook = self._on_forward
        self.forget()

    def forget(self) -> None:
        """Let go of modules, states and copies: the step is over."""
        self._thread = threading.get_ident()
        self.modules: dict[nn.Module, None] = {}
        self.casts: set[torch.dtype] = set()  # autocast's, where a module was called
        self._generators_before: generators.States = {}
        self._generators_after: generators.States = {}
        self._drawn_from: generators.States = {}
        self._buffers_before: list[_Buffers] = []
        self._buffers_after: list[_Buffers] = []

    @contextmanager
    def first_pass(self, device_type: str = "cpu") -> Iterator[None]:
        """Remember how the world was before this block, and what autocast does in it."""
        self.forget()
        self._device_type = device_type
        self._generators_before = generators.states()
        if self.model is not None:
            self._meet(self.model)
            yield
            return
        # Not through torch's register function: that gives each hook a number of its own, on
        # which compiled modules depend too.
        hooks: dict[Any, Any] = torch.nn.modules.module._global_forward_pre_hooks
        hooks[self] = self._hook
        try:
            yield
        finally:
            hooks.pop(self, None)

    def _on_forward(self, module: nn.Module, args: object) -> None:
        # Another thread's modules are another run's.
        if not torch.compiler.is_compiling() and threading.get_ident() == self._thread:
            self._meet(module)
            if torch.is_autocast_enabled(self._device_type):
                self.casts.add(torch.get_autocast_dtype(self._device_type))

    def _meet(self, module: nn.Module) -> None:
        if module not in self.modules:
            new = [inner for inner in module.modules() if inner not in self.modules]
            self.modules.update(dict.fromkeys(new))
            self._buffers_before.append(_Buffers(new))

    def mark(self) -> None:
        """Remember how the world is after the first pass."""
        self._generators_after = generators.states()
        self._drawn_from = generators.changed(self._generators_before, self._generators_after)
        self._buffers_after = [_Buffers(self.modules)]

    def rewind(self) -> None:
        """As before the first pass."""
        self._restore_buffers(self._buffers_before)
        generators.restore(self._generators_before)

    def rewind_for_probe(self) -> None:
        """As before the first pass, but for generators it did not draw from: nor will a probe."""
        self._restore_buffers(self._buffers_before)
        generators.restore(self._drawn_from)

    def has_drawn_alike(self) -> bool:
        """Whether a probe has drawn what the first pass drew, or nothing."""
        return generators.drawn_alike(self._drawn_from, self._generators_after)

    def go_on(self) -> None:
        """As after the first pass, once it was marked."""
        self._restore_buffers(self._buffers_after)
        generators.restore(self._generators_after)

    def rewind_buffers_where(self, lost: Tensor) -> None:
        """Buffers as before the first pass where `lost` is true, decided on the device."""
        for copies in self._buffers_before:
            copies.restore_where(lost)

    @staticmethod
    def _restore_buffers(buffers: list[_Buffers]) -> None:
        for copies in buffers:
            copies.restore()
