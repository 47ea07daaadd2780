"""A method on a network, trained by the epoch as a cell is, and timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from floor import wait

from cgqbench.experiments.cell import Cell
from cgqbench.tasks.task import Task
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.epoch import train_epoch
from cgqbench.training.feed import Feed
from cgqbench.training.learner import Learner


class Trained:
    """Its first epoch, which warms up and on a GPU captures, is not counted.

    With `batches`, so many of each epoch; schedules and Armijo's growth still go by whole ones.
    """

    def __init__(
        self, cell: Cell, task: Task, arithmetic: Arithmetic, batches: int | None = None
    ) -> None:
        graphs = arithmetic.device.type == "cuda"
        self.times: list[float] = []
        """Seconds a step, by epoch."""
        self.passes: list[float] = []
        """Forward passes a step, by epoch."""
        self._epochs = 0
        feed_of = partial(
            Feed, device=arithmetic.device, batch_size=cell.batch_size, seed=cell.seed
        )
        began = time.perf_counter()
        self.learner = Learner(cell, task, feed_of(task), arithmetic, graphs=graphs)
        if batches is not None:
            self.learner.feed = feed_of(replace(task, epoch_size=batches * cell.batch_size))
        self.epoch()
        self.first_epoch = time.perf_counter() - began

    def epoch(self) -> None:
        """Train for one."""
        self._epochs += 1
        device = self.learner.arithmetic.device
        wait(device)
        began = time.perf_counter()
        row = train_epoch(self.learner, self._epochs, lambda progress: None)
        wait(device)
        if self._epochs > 1:
            self.times.append((time.perf_counter() - began) / len(self.learner.feed))
            self.passes.append(row["passes"])


def middle(values: Sequence[float], digits: int) -> str:
    """The one in the middle, and where there are several the least and the most."""
    found = f"{statistics.median(values):.{digits}f}"
    spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})"
    return found + spread if len(values) > 1 else found
