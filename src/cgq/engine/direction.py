"""Where a step goes, how far it may, and what became of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cgq.engine.options import SearchOptions
from cgq.evaluation.loss import loss_value
from cgq.evaluation.precision import rounding
from cgq.rules.scalars import Number, is_zero, stacked, times
from cgq.rules.search import Search
from cgq.rules.watch import Watch
from cgq.vectors.line import Line
from cgq.vectors.process_group import Ranks
from cgq.vectors.products import Dots, Vector
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
    agreement: Number = math.nan  # of this batch with the step before
    own_agreement: Number = math.nan  # of this batch with the step it chose
    squared_length: Number = math.nan  # |d|², if the search needs it

    @property
    def is_finite(self) -> bool:
        return self.nil == 0.0 and math.isfinite(self.slope)

    def read(self, device: torch.device) -> Plan:
        """The same as floats: the host waits for them."""
        return Plan(*stacked(device, *self).tolist())


class Outcome(NamedTuple):
    """What became of a step. `skipped` and numbers are tensors where the host did not look."""

    numbers: dict[str, Number]
    """What the next step finds in the groups; none of a step that the host has skipped."""
    loss: Number = None
    """The minimised loss at the old point, as all ranks see it; None: the step saw none."""
    skipped: bool | Tensor = False
    search: Search | None = None
    ceiling: float = math.nan
    """The longest step that the search was allowed."""
    capped: bool = False
    """Whether the ceiling, or the trial under it, kept the search from going further."""
    due: bool = False
    """Whether a search was due, though there may have been nothing to search."""
    agreement: float = math.nan
    """How well this batch agrees with the step before, after a search; NaN: not known."""
    own_agreement: float = math.nan
    """How well it agrees with its own."""
    raised: str = ""
    """What a trial raised that was therefore rejected."""
    is_constant: bool = False
    """Whether each trial had the same loss to the last bit, though the slope promised a change."""
    repeats: bool | None = None
    """Whether the closure gave the same loss at the same point; None: it was not asked twice."""


SKIPPED = Outcome({}, skipped=True)


def averaged_share(before: Mapping[str, Any]) -> Number:
    """Which share of a relative ceiling searches led to; before any of them, all of it."""
    average = before["average"]
    return 1.0 if is_zero(average) else average


class Direction(ABC):
    """The way a batch says to go.

    Args:
        workspace: the vectors it is made of.
        options: of the optimizer.
        ranks: who must agree on every number; None: this one is alone.
        before: the numbers that the last step left.
    """

    sign: float
    """-1.0 where the loss is maximised."""
    vector = Vector
    """What gives inner products: floats here, tensors on a device."""

    def __init__(
        self,
        workspace: Workspace,
        options: SearchOptions,
        ranks: Ranks | None,
        before: Mapping[str, Any],
    ) -> None:
        self.workspace, self.layout, self._options = workspace, workspace.layout, options
        self.ranks, self._before = ranks, before

    @abstractmethod
    def plan(self, loss: Tensor | float, error: float) -> Plan:
        """What a search starts from, of a loss whose relative error is seen to be `error`."""

    @abstractmethod
    def average_plan(self, loss: Tensor | float | None) -> Plan:
        """The average step, as the plan's trial."""

    @abstractmethod
    def line(self, plan: Plan) -> Line:
        """The points along it, from a snapshot of the parameters."""

    @abstractmethod
    def move(self, plan: Plan) -> None:
        """Take the plan's trial without measuring it, and remember this batch."""

    @abstractmethod
    def remember(self, plan: Plan) -> None:
        """Remember this batch, after a search that found a step."""

    def numbers(self, plan: Plan, search: Search | None = None) -> dict[str, Number]:
        """What it leaves to the next step."""
        return {}

    def unsearched_step(self, loss: Tensor | float | None) -> Outcome:
        """Move by the average step."""
        return self._taken(self.average_plan(loss), loss)

    def watched_step(self, loss: Tensor | float, watch: Watch) -> Outcome | None:
        """Move by the average step, unless the loss alarms the watch: then nothing is done."""
        plan = self.average_plan(loss)
        alarmed = plan.nil == 0.0 and watch.is_alarmed_by(plan.loss)
        return None if alarmed else self._taken(plan, loss)

    def _taken(self, plan: Plan, loss: Tensor | float | None) -> Outcome:
        outcome = self.moved(plan) if plan.nil == 0.0 else SKIPPED
        return outcome._replace(loss=None if loss is None else plan.loss)

    def moved(self, plan: Plan) -> Outcome:
        """Move by the plan's trial."""
        self.move(plan)
        return Outcome({"step_size": plan.trial, **self.numbers(plan)}, plan.loss)

    def average_step(self, ceiling: Number) -> Number:
        """The averaged share of this ceiling; before any search, all of it."""
        return averaged_share(self._before) * ceiling

    def _named(self, name: str, dots: Dots, parts: Callable[[], Any], scale: float = 1.0) -> Vector:
        """A vector that shares what products are known."""
        return self.vector(name, self.layout, dots, parts, scale)

    def _phi_0(self, loss: Tensor | float | None) -> Number:
        return 0.0 if loss is None else times(self.sign, loss_value(loss, self.layout.device))

    def _error(self, seen: float) -> float:
        """How far off a loss may be, relatively, as far as this rank sees."""
        return max(seen, rounding(self.layout.dtypes))

    def _agreed(self, *numbers: Number) -> list[Number]:
        """The numbers as the ranks see them together.

        What follows from products of shards, and from what came along, they have agreed on.
        """
        if self.ranks is None or self.layout.reduce is not None:
            return list(numbers)
        return self.ranks.agreed(numbers, self.layout.device)
