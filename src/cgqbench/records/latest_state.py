"""What an unfinished run would go on from: in memory after each epoch, on the disk now and then."""

from __future__ import annotations

import copy
import time
from typing import Any

from torch import Tensor

from cgqbench.records.checkpoint import Checkpoint

# A checkpoint of a large network may take as long as an epoch, and runs beside each other share
# one disk: of a run's time, writing gets this share.
SHARE = 0.05


class LatestState:
    """The state after the last epoch, which is on the disk when this block ends, however it ends.

    Within the block it is there after the first epoch, and then as often as writing takes at most
    `SHARE` of the time; in between, a copy in the host's memory. Only a process that is killed
    without a word leaves an older state, from which the same run goes on.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._unwritten: tuple[Any, int] | None = None
        self._next_write = 0.0
        self.seconds_to_write = 0.0
        """What the last write took, and so what one at the end of the block may take."""

    def keep(self, state: Any, epoch: int) -> None:
        """Take the state after an epoch in place of the last one."""
        if time.monotonic() >= self._next_write:
            self._write(state, epoch)
            self._unwritten = None
        else:
            self._unwritten = on_host(state), epoch

    def discard(self) -> None:
        """The run has come to its end: nothing goes on from here."""
        self._unwritten = None
        self._checkpoint.remove()

    def _write(self, state: Any, epoch: int) -> None:
        began = time.monotonic()
        self._checkpoint.save(state, epoch)
        ended = time.monotonic()
        self.seconds_to_write = ended - began
        self._next_write = ended + self.seconds_to_write / SHARE

    def __enter__(self) -> LatestState:
        return self

    def __exit__(self, *_: object) -> None:
        if self._unwritten is not None:
            self._write(*self._unwritten)


def on_host(state: Any) -> Any:
    """A copy of which the tensors are in the host's memory; containers keep their types.

    >>> import torch
    >>> weights = torch.ones(2)
    >>> copy = on_host({"weights": [weights], "epoch": 3})
    >>> weights.zero_(), copy
    (tensor([0., 0.]), {'weights': [tensor([1., 1.])], 'epoch': 3})
    """
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        copied = copy.copy(state)  # with what it holds besides, such as a module's versions
        for name, value in state.items():
            copied[name] = on_host(value)
        return copied
    if type(state) in (list, tuple):
        return type(state)(on_host(value) for value in state)
    return copy.deepcopy(state)
