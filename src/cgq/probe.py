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
from torch.nn.modules.module import register_module_forward_pre_hook

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

    The modules are those inside `model`, and any other that is called during the first pass: a
    compiled module counts with all that is inside it.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        self._modules: set[nn.Module] = set()
        self._places: list[tuple[dict[str, Tensor | None], str]] = []
        self._generators_before: generators.States = []
        self._generators_after: generators.States = []
        self._buffers_before: list[_Copies] = []
        self._buffers_after: list[_Copies] = []

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        """Remember how the world was before this block."""
        self._generators_before = generators.states()
        if self._model is not None:
            self._meet(self._model)
        hook = register_module_forward_pre_hook(lambda module, args: self._meet(module))
        try:
            yield
        finally:
            hook.remove()

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
        for copies in self._buffers_before:
            copies.restore()
        generators.restore(self._generators_before, unless_in=self._generators_after)

    def go_on(self) -> None:
        """As after the first pass, once it was marked."""
        for copies in self._buffers_after:
            copies.restore()
        generators.restore(self._generators_after)

    def rewind_buffers_unless(self, keep: Tensor) -> None:
        """Buffers as before the first pass where `keep` is false, decided on the device."""
        for copies in self._buffers_before:
            copies.restore_unless(keep)
