"""What the steps of an epoch add up to, without waiting for the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from cgqbench.methods import readings
from cgqbench.records.record import Line
from cgqbench.records.train_curve import LOSSES, stretch


class BatchProgress(NamedTuple):
    """Where a running epoch stands."""

    epoch: int
    batch: int
    batches: int
    loss: float
    step_size: float | None
    momentum: float | None


def finite(value: float | None) -> float | None:
    """The value, or None where it is no number that JSON knows."""
    return value if value is not None and math.isfinite(value) else None


def _short(value: float | None) -> float | None:
    """Six digits, for numbers of which there are many.

    >>> _short(1.2345678)
    1.23457
    """
    return None if value is None else float(f"{value:.6g}")


@dataclass
class Mean:
    """A running mean that leaves tensors where they are."""

    total: float | Tensor = 0.0
    count: int = 0

    def add(self, value: float | Tensor | None) -> None:
        """Take one more value, if there is one."""
        if value is not None:
            self.total = self.total + value
            self.count += 1

    @property
    def value(self) -> float | None:
        """The mean as a number; None without values, or if it is not finite."""
        return finite(float(self.total) / self.count) if self.count else None


class Meter:
    """What the steps of an epoch of some batches add up to."""

    def __init__(self, batches: int) -> None:
        self._loss, self._step_size, self._momentum = Mean(), Mean(), Mean()
        self._stretch, self._stretches = stretch(batches), list[Mean]()
        self._steps = self._passes = self._searches = self._capped = 0

    def add(self, loss: Any, optimizer: Optimizer) -> None:
        """Count one step."""
        loss = loss.detach() if isinstance(loss, Tensor) else loss
        if self._steps % self._stretch == 0:
            self._stretches.append(Mean())
        for mean in (self._loss, self._stretches[-1]):
            mean.add(loss)
        self._step_size.add(readings.step_size(optimizer))
        self._momentum.add(readings.momentum(optimizer))
        self._steps += 1
        self._passes += 1
        search = getattr(optimizer, "last_search", None)
        if search is not None:
            self._searches += 1
            self._passes += search.evaluations
            self._capped += search.capped

    def progress(self, epoch: int, batch: int, batches: int) -> BatchProgress:
        """Where the epoch stands now."""
        loss = self._loss.value
        return BatchProgress(
            epoch,
            batch,
            batches,
            math.nan if loss is None else loss,
            self._step_size.value,
            self._momentum.value,
        )

    def row(self, optimizer: Optimizer) -> Line:
        """The epoch's part of a record's row."""
        searching = hasattr(optimizer, "last_search")
        return {
            "train_loss": self._loss.value,
            LOSSES: [_short(mean.value) for mean in self._stretches],
            "step_size": self._step_size.value,
            "momentum": self._momentum.value,
            "passes": self._passes / self._steps,
            "searches": self._searches if searching else None,
            "capped": self._capped / self._searches if self._searches else None,
            "skipped": int(optimizer.param_groups[0].get("skipped", 0)),
        }
