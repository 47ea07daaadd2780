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


class _Copies:
    """Buffers with the values they had, and where they belong."""

    def __init__(self, places: list[tuple[dict[str, Tensor | None], str]]) -> None:
        self._places = [(owner, name, owner[name]) for owner, name in places]
        alike: dict[Any, list[Tensor]] = {}  # one foreach kernel takes tensors of one kind
        for _, _, buffer in self._places:
            if buffer is not None:
                alike.setdefault((buffer.device, buffer.dtype), []).append(buffer)
        self._saved = [(buffers, [b.clone() for b in buffers]) for buffers in alike.values()]

    def restore(self) -> None:
        for owner, name, buffer in self._places:
            owner[name] = buffer
        for buffers, values in self._saved:
            torch._foreach_copy_(buffers, values)

    def restore_unless(self, keep: Tensor) -> None:
        """Restore the values where `keep` is false, without the host looking at it."""
        for buffers, values in self._saved:
            now, then = (torch.cat([t.reshape(-1) for t in ts]) for ts in (buffers, values))
            mixed = torch.where(keep.to(now.device), now, then)
            kept = torch.split(mixed, [buffer.numel() for buffer in buffers])
            torch._foreach_copy_(
                buffers, [x.view(b.shape) for x, b in zip(kept, buffers, strict=True)]
            )


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
        self._reset()

    def _reset(self) -> None:
        self._modules: set[nn.Module] = set()
        self._places: list[tuple[dict[str, Tensor | None], str]] = []
        self._generators_before: generators.States = []
        self._generators_after: generators.States = []
        self._buffers_before: list[_Copies] = []
        self._buffers_after: list[_Copies] = []

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        """Remember how the world was before this block."""
        self._reset()
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
        self._buffers_after = [_Copies(self._places)]

    def rewind(self) -> None:
        """As before the first pass."""
        self._restore_buffers(self._buffers_before)
        generators.restore(self._generators_before)

    def rewind_for_probe(self) -> None:
        """As before the first pass, but for generators it did not draw from: nor will a probe."""
        self._restore_buffers(self._buffers_before)
        generators.restore(self._generators_before, unless_in=self._generators_after)

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
