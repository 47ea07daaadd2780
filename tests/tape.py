"""A recorder on a CPU that is as blind as a CUDA graph: it repeats operations, and no Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Notes each operation with the tensors it had, and what memory was before it was written."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                for tensor in tree_leaves(value):
                    if isinstance(tensor, Tensor):
                        storage = tensor.untyped_storage()
                        self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        result = func(*args, **kwargs)
        self._operations.append((func, args, kwargs, result))
        return result

    def rewind(self) -> None:
        """Nothing of it was done."""
        for storage, before in self._before.values():
            storage.copy_(before)

    def play(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, result in self._operations:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)  # where what comes after looks for it


class Taped:
    """Captures on tapes."""

    def __init__(self, layout: object = None) -> None:
        self.device, self.is_busy = torch.device("cpu"), False
        self.captures = self.replays = 0

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        tape = Tape()
        self.is_busy = True
        try:
            with tape:
                work()
        finally:
            tape.rewind()
            self.is_busy = False
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            tape.play()

        return replay
