"""Where a step goes: the direction, its slope, and how far a step along it may be."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cgq.engine.options import SearchOptions
from cgq.evaluation.closure import loss_value
from cgq.evaluation.precision import rounding
from cgq.rules.scalars import Number, stacked, times
from cgq.rules.search import Search
from cgq.vectors.line import Line
from cgq.vectors.process_group import Ranks
from cgq.vectors.workspace import Workspace


class Plan(NamedTuple):
    """What a step is decided from. Floats on the host, 0-dim tensors on a device."""

    loss: Number  # φ(0), minimised
    nil: Number  # 0, or NaN where loss or gradient is not finite
    slope: Number = math.nan  # φ'(0); not known where nothing is searched
    ceiling: Number = math.nan
    trial: Number = 0.0  # the first trial; where nothing is searched, the step
    beta: Number = 0.0
    bound: Number = 0.0  # at least |p|
    noise: Number = 0.0  # how far the loss may be off
    squared_length: Number = math.nan  # |d|², if the search needs it

    @property
    def is_finite(self) -> bool:
        return self.nil == 0.0 and math.isfinite(self.slope)

    def on_host(self, device: torch.device) -> Plan:
        """The same numbers, read off the device."""
        return Plan(*stacked(device, *self).tolist())


class Direction(ABC):
    """The way a batch says to go. No number is read that the host would have to wait for.

    Args:
        workspace: the vectors it is made of.
        options: of the optimizer.
        ranks: who must agree on every number.
        before: the numbers that the last step left.
    """

    sign = 1.0
    """-1.0 where the loss is maximised."""

    def __init__(
        self,
        workspace: Workspace,
        options: SearchOptions,
        ranks: Ranks,
        before: Mapping[str, Any],
    ) -> None:
        self.layout, self._options, self._ranks = workspace.layout, options, ranks
        self._before = before

    @abstractmethod
    def plan(self, loss: Tensor | float, error: float) -> Plan:
        """What a search starts from, of a loss whose relative error is seen to be `error`."""

    @abstractmethod
    def unsearched_plan(self, loss: Tensor | float | None) -> Plan:
        """The average step; NaN on a device where it must not be taken."""

    @abstractmethod
    def line(self, plan: Plan) -> Line:
        """The points along it, from a snapshot of the parameters."""

    @abstractmethod
    def withhold(self, lost: Tensor) -> None:
        """Go nowhere if the batch is `lost`, which the host does not read."""

    @abstractmethod
    def move(self, plan: Plan) -> None:
        """Take the plan's trial as it is."""

    @abstractmethod
    def move_unless(self, lost: Tensor, plan: Plan) -> None:
        """The same, unless the batch is `lost`, which the host does not read."""

    @abstractmethod
    def remember(self, plan: Plan) -> None:
        """Take in this batch, after a search that found a step."""

    def numbers(self, plan: Plan) -> dict[str, Number]:
        """What it leaves to the next step."""
        return {}

    def numbers_after(self, search: Search, plan: Plan) -> dict[str, Number]:
        """The same after a search."""
        return self.numbers(plan)

    def average_step(self, ceiling: Number) -> Number:
        """The averaged share of this ceiling; before any search, all of it."""
        return (self._before["average"] or 1.0) * ceiling

    def _phi_0(self, loss: Tensor | float | None) -> Number:
        return 0.0 if loss is None else times(self.sign, loss_value(loss, self.layout.device))

    def _noise(self, phi_0: Number, error: float) -> Number:
        """How far the loss may be off."""
        return max(error, rounding(self.layout.dtypes)) * abs(phi_0)

    def _agreed(self, *numbers: Number) -> list[Number]:
        """The numbers as the ranks see them together."""
        return self._ranks.agreed(numbers, self.layout.device)
