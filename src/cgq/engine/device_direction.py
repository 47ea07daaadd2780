"""Directions on an accelerator: nothing is read that the host would have to wait for."""

from __future__ import annotations

import math
from abc import abstractmethod

from torch import Tensor

from cgq.engine.direction import Direction, Outcome, Plan
from cgq.rules.scalars import Number, as_tensor, choose
from cgq.rules.watch import Watch
from cgq.vectors.layout import Buffer
from cgq.vectors.products import DeviceVector


class DeviceDirection(Direction):
    """A direction that a device follows, or does not, without asking the host."""

    vector = DeviceVector

    @abstractmethod
    def withhold(self, lost: Tensor) -> None:
        """Go nowhere if the batch is `lost`, which the host does not read."""

    @abstractmethod
    def move_unless(self, lost: Tensor, plan: Plan) -> None:
        """Take the plan's trial, unless the batch is `lost`."""

    def watched_step(self, loss: Tensor | float, watch: Watch) -> Outcome | None:
        """Where the loss alarms the watch the device stays: the host will search two steps later.

        To move twice by an average that has become too long can ruin a network.
        """
        return self.unsearched_step(loss, watch.limit)

    def unsearched_step(self, loss: Tensor | float | None, limit: Number = math.inf) -> Outcome:
        """Move by the average step; the device skips it where something is not finite."""
        outcome = self._followed(self.average_plan(loss), limit)
        return outcome._replace(loss=None) if loss is None else outcome

    def _followed(self, plan: Plan, limit: Number = math.inf) -> Outcome:
        """Move by the plan's trial, unless it is not finite or the loss is above the limit."""
        lost, trial = plan.nil != 0.0, plan.trial.nan_to_num_(nan=0.0, posinf=0.0)
        if isinstance(limit, Tensor) or limit < math.inf:
            trial = trial.masked_fill_(as_tensor(plan.loss, trial.device) > limit, 0.0)
        plan = plan._replace(trial=trial)
        self.move_unless(lost, plan)
        numbers = {
            name: choose(lost, self._before[name], value)
            for name, value in self.numbers(plan).items()
        }
        return Outcome({"step_size": plan.trial, **numbers}, plan.loss, lost)


def clear(vector: Buffer, lost: Tensor) -> None:
    """Make it zero where `lost` is true."""
    for block in vector.blocks:
        block.masked_fill_(lost.to(block.device), 0.0)
