"""Honest re-evaluation: what a forward pass draws and changes besides its result.

A probe must see the same dropout masks and module buffers as the first pass, and the program must
go on as if that first pass had been the only one.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import maybe_current_level

from cgq.evaluation import rng
from cgq.evaluation.buffer_sync import BufferSync
from cgq.evaluation.inner_modules import InnerModules
from cgq.evaluation.snapshots import Snapshot, buffers
from cgq.evaluation.written_parameters import WrittenParameters

# Passes at first, and between later ones, in which what is costly to look at is.
LOOKS = 16


class Environment:
    """Random generators and module buffers before and after the first pass of a step.

    The modules are those inside `model`; if it is None, those called during the first pass. Of a
    compiled module the outermost call is seen and all that is inside it counts. The call of a
    module compiled in place is not: see `look_for_compiled`. Of a compiled function nothing is
    seen: it needs `model`.
    """

    def __init__(self, model: nn.Module | None) -> None:
        if not (model is None or isinstance(model, nn.Module)):
            raise ValueError(f"Invalid model: {model!r}. Pass the torch.nn.Module you train.")
        self.model = model
        # One function for good: a compiled module is compiled anew for each hook it meets.
        self._hook = self._on_forward
        self._inner = InnerModules()
        self._compiled: list[nn.Module] | None = None  # in place; None: nobody has looked for them
        self._passes = 0
        self._looks = True
        self._written = WrittenParameters()
        self._draws_from_costly = False  # generators, as far as was seen
        self._looked_at: Callable[[str], bool] = rng.is_quick
        self.forget()

    def forget(self) -> None:
        """Let go of modules, states and copies: the step is over."""
        self._thread = threading.get_ident()
        self.modules: dict[nn.Module, None] = {}
        self.casts: set[torch.dtype] = set()  # autocast's, where a module was called
        self._rng_before: rng.States = {}
        self._rng_after: rng.States = {}
        self._drawn_from: rng.States = {}
        self._buffers_before: list[Snapshot | BufferSync] = []
        self._buffers_after: list[Snapshot | BufferSync] = []

    @contextmanager
    def first_pass(self, device_type: str = "cpu") -> Iterator[None]:
        """Remember how everything was before this block, and what autocast does in it."""
        self.forget()
        self._device_type = device_type
        self._looks = self._passes < LOOKS or self._passes % LOOKS == 0
        self._passes += 1
        self._note_generators()
        self._buffers_before = self._written_parameters()
        # Not through torch's register function: that gives each hook a number of its own, on
        # which compiled modules depend too.
        hooks: dict[Any, Any] = torch.nn.modules.module._global_forward_pre_hooks
        if self.model is not None:
            self._meet(self.model)
        else:
            for module in self._compiled or ():
                self._meet(module)
            hooks[self] = self._hook
        try:
            yield
        finally:
            hooks.pop(self, None)
            self._written.look()
        self._look_for_draws()

    def _note_generators(self) -> None:
        """Note their states; of costly ones, where somebody draws from them or now and then."""
        looks = self._draws_from_costly or self._looks
        self._looked_at = (lambda name: True) if looks else rng.is_quick
        self._rng_before = rng.states(self._looked_at)

    def _look_for_draws(self) -> None:
        costly = {name: self._rng_before[name] for name in rng.COSTLY & self._rng_before.keys()}
        if costly and not self._draws_from_costly:
            self._draws_from_costly = bool(rng.changed(costly, rng.states(costly.__contains__)))

    def look_for_compiled(self, params: Sequence[Tensor]) -> None:
        """Look once for modules with these parameters that `module.compile()` has compiled."""
        if self._compiled is not None or self.model is not None or not _any_compiled_in_place():
            return
        own = {id(param) for param in params if isinstance(param, nn.Parameter)}
        if own:  # modules hold no other tensors as parameters
            self._compiled = [
                module
                for module in gc.get_objects()
                if issubclass(type(module), nn.Module)
                and module.__dict__.get("_compiled_call_impl") is not None
                and any(id(param) in own for param in module.parameters())
            ]

    def _on_forward(self, module: nn.Module, args: object) -> None:
        """Called before each forward pass of any module: it must cost next to nothing."""
        # The first question is for a compiler: it answers yes, and asks for nothing behind it.
        if not torch.compiler.is_dynamo_compiling() and (
            module not in self.modules or torch.is_autocast_enabled(self._device_type)
        ):
            self._note_call(module)

    def _note_call(self, module: nn.Module) -> None:
        # Another thread's modules are another run's. Within vmap() and its like a module holds
        # tensors that do not outlive it, and that nothing can write to.
        is_own = threading.get_ident() == self._thread and maybe_current_level() is None
        if is_own and not torch.compiler.is_compiling():
            self._meet(module)
            if torch.is_autocast_enabled(self._device_type):
                self.casts.add(torch.get_autocast_dtype(self._device_type))

    def _meet(self, module: nn.Module) -> None:
        if module not in self.modules:
            new = self._inner.of(module)
            if self.modules:
                new = [inner for inner in new if inner not in self.modules]
            if self._looks:
                self._written.watch(new)
            self.modules.update(dict.fromkeys(new))
            self._buffers_before += [_buffers_of(new), BufferSync(new)]

    def mark(self) -> None:
        """Remember how everything is after the first pass."""
        self._rng_after = rng.states(self._looked_at)
        self._drawn_from = rng.changed(self._rng_before, self._rng_after)
        self._buffers_after = [
            _buffers_of(self.modules),
            BufferSync(self.modules),
            *self._written_parameters(),
        ]

    def _written_parameters(self) -> list[Snapshot | BufferSync]:
        known = self._written.known()
        return [Snapshot([dict(enumerate(known))])] if known else []

    def rewind(self) -> None:
        """As before the first pass."""
        _restore(self._buffers_before)
        rng.restore(self._rng_before)

    def rewind_for_probe(self) -> None:
        """As before the first pass, but for generators it did not draw from: nor will a probe."""
        _restore(self._buffers_before)
        rng.restore(self._drawn_from)

    def rewind_buffers_where(self, lost: Tensor) -> None:
        """Buffers as before the first pass where `lost` is true, decided on the device."""
        for snapshot in self._buffers_before:
            snapshot.restore_where(lost)

    def resume(self) -> None:
        """As after the first pass, once it was marked."""
        _restore(self._buffers_after)
        rng.restore(self._rng_after)

    def has_drawn_alike(self) -> bool:
        """Whether a probe has drawn what the first pass drew, or nothing."""
        return rng.drawn_alike(self._drawn_from, self._rng_after)


def _any_compiled_in_place() -> bool:
    """Whether `module.compile()` was ever called: to look for modules takes a tenth of a second."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    compiled = getattr(frames, "always_optimize_code_objects", None)
    return frames is not None and (compiled is None or nn.Module._call_impl.__code__ in compiled)


def _buffers_of(modules: Iterable[nn.Module]) -> Snapshot:
    return Snapshot([buffers(module) for module in modules])


def _restore(snapshots: list[Snapshot | BufferSync]) -> None:
    for snapshot in snapshots:
        snapshot.restore()
