"""Honest re-evaluation: what a forward pass draws and changes besides its result.

A probe must see the same dropout masks and module buffers as the first pass, and the program must
go on as if that first pass had been the only one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cgq import generators

Place = tuple[dict[str, Tensor | None], str]  # a module's dictionary of buffers, and a name


class _Copies:
    """Buffers with the values they had, and where they belong."""

    def __init__(self, places: list[Place]) -> None:
        self._places = [(owner, name, owner[name]) for owner, name in places]
        alike: dict[Any, list[int]] = {}  # one foreach kernel takes tensors of one kind
        for index, (_, _, buffer) in enumerate(self._places):
            if buffer is not None:
                alike.setdefault((buffer.device, buffer.dtype), []).append(index)
        self._alike = list(alike.values())
        self._values = [None if b is None else b.clone() for _, _, b in self._places]

    def restore(self) -> None:
        for owner, name, buffer in self._places:
            owner[name] = buffer
        for indices in self._alike:
            torch._foreach_copy_(*self._now_and_then(indices))

    def restore_unless(self, keep: Tensor) -> None:
        """Restore the values where `keep` is false, without the host looking at it."""
        for indices in self._alike:
            now, then = self._now_and_then(indices)
            flat_now, flat_then = (torch.cat([t.reshape(-1) for t in ts]) for ts in (now, then))
            mixed = torch.where(keep.to(flat_now.device), flat_now, flat_then)
            kept = torch.split(mixed, [tensor.numel() for tensor in now])
            torch._foreach_copy_(now, [k.view(t.shape) for k, t in zip(kept, now, strict=True)])

    def _now_and_then(self, indices: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        """The buffers now in their places, and the values that were there."""
        now = [owner[name] for owner, name, _ in (self._places[i] for i in indices)]
        then = [self._values[i] for i in indices]
        pairs = [(n, t) for n, t in zip(now, then, strict=True) if n is not None and t is not None]
        return [n for n, _ in pairs], [t for _, t in pairs]


class World:
    """Random generators and module buffers before and after the first pass of a step.

    The modules are those inside `model`; if it is None, those called during the first pass. Of a
    compiled module the outermost call is seen and all that is inside it counts; but of a module
    compiled in place, or a compiled function, nothing is seen: these need `model`.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        # One function for good: a compiled module is compiled anew for each hook it meets.
        self._hook = self._on_forward
        self.forget()

    def forget(self) -> None:
        """Let go of modules, states and copies: the step is over."""
        self._modules: set[nn.Module] = set()
        self._places: list[Place] = []
        self._generators_before: generators.States = {}
        self._generators_after: generators.States = {}
        self._drawn_from: generators.States = {}
        self._buffers_before: list[_Copies] = []
        self._buffers_after: list[_Copies] = []

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        """Remember how the world was before this block."""
        self.forget()
        self._generators_before = generators.states()
        if self._model is not None:
            self._meet(self._model)
            yield
            return
        # Not through torch's register function: that gives each hook a number of its own, on
        # which compiled modules depend too.
        hooks: dict[Any, Any] = torch.nn.modules.module._global_forward_pre_hooks
        outer = hooks.get(World)
        hooks[World] = self._hook
        try:
            yield
        finally:
            del hooks[World]
            if outer is not None:
                hooks[World] = outer

    def _on_forward(self, module: nn.Module, args: object) -> None:
        if not torch.compiler.is_compiling():
            self._meet(module)

    def _meet(self, module: nn.Module) -> None:
        if module in self._modules:
            return
        new = [inner for inner in module.modules() if inner not in self._modules]
        self._modules.update(new)
        places = [(inner._buffers, name) for inner in new for name in inner._buffers]
        if places:
            self._places += places
            self._buffers_before.append(_Copies(places))

    def mark(self) -> None:
        """Remember how the world is after the first pass."""
        self._generators_after = generators.states()
        self._drawn_from = generators.changed(self._generators_before, self._generators_after)
        self._buffers_after = [_Copies(self._places)]

    def rewind(self) -> None:
        """As before the first pass."""
        self._restore_buffers(self._buffers_before)
        generators.restore(self._generators_before)

    def rewind_for_probe(self) -> None:
        """As before the first pass, but for generators it did not draw from: nor will a probe."""
        self._restore_buffers(self._buffers_before)
        generators.restore(self._drawn_from)

    def go_on(self) -> None:
        """As after the first pass, once it was marked."""
        self._restore_buffers(self._buffers_after)
        generators.restore(self._generators_after)

    def rewind_buffers_unless(self, keep: Tensor) -> None:
        """Buffers as before the first pass where `keep` is false, decided on the device."""
        for copies in self._buffers_before:
            copies.restore_unless(keep)

    @staticmethod
    def _restore_buffers(buffers: list[_Copies]) -> None:
        for copies in buffers:
            copies.restore()
