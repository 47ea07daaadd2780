"""Directions on an accelerator: nothing is read that the host would have to wait for."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping

from torch import Tensor

from cgq.engine.direction import Direction, Outcome, Plan
from cgq.rules.scalars import Number, as_tensors, choose, finite_or_zero
from cgq.rules.watch import Watch
from cgq.vectors import one_pass
from cgq.vectors.device_line import DeviceLine
from cgq.vectors.layout import Buffer, Layout
from cgq.vectors.products import DeviceVector
from cgq.vectors.recording import Recording


class DeviceDirection(Direction):
    """A direction that a device follows, or does not, without asking the host."""

    vector = DeviceVector

    @abstractmethod
    def withhold(self, lost: Number) -> None:
        """Go nowhere if the batch is `lost`, which the host does not read."""

    @abstractmethod
    def move_unless(self, lost: Number, plan: Plan) -> None:
        """Take the plan's trial, unless the batch is `lost`."""

    @abstractmethod
    def line(self, plan: Plan) -> DeviceLine: ...

    def begun_at_once(self, loss: Tensor | float, error: float) -> tuple[Plan, DeviceLine] | None:
        """As `begun`, and moved to the first trial, as a recording; None: nothing was done."""
        return None

    def begun(self, loss: Tensor | float, error: float) -> tuple[Plan, DeviceLine]:
        """What a search starts from, in tensors, and its line."""
        plan, device = self.plan(loss, error), self.layout.device
        line = self.line(plan)
        # A batch that is lost is measured where it stands: its direction leads to NaN.
        lost = plan.nil * plan.slope != 0.0
        self.withhold(lost)
        plan = plan._replace(trial=choose(lost, 0.0, plan.trial))
        # All of them tensors: of a float and a tensor torch makes another quotient than the host.
        # But not the last, a length: nobody asks for it here.
        return Plan(*as_tensors(device, *plan[:-1])), line

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
        lost, trial = plan.nil != 0.0, finite_or_zero(plan.trial)
        if isinstance(limit, Tensor) or limit < math.inf:
            trial = choose(plan.loss > limit, 0.0, trial)
        plan = plan._replace(trial=trial)
        self.move_unless(lost, plan)
        numbers = {
            name: choose(lost, self._before[name], value)
            for name, value in self.numbers(plan).items()
        }
        return Outcome({"step_size": plan.trial, **numbers}, plan.loss, lost)


def as_results(step: Outcome) -> dict[str, Number]:
    """A step that was not searched, as what a recording gives."""
    seen = {} if step.loss is None else {"loss": step.loss}
    return {**step.numbers, **seen, "lost": step.skipped}


def outcome_of(results: dict[str, Tensor]) -> Outcome:
    """The same from what it has handed out."""
    lost, seen = results.pop("lost") != 0.0, results.pop("loss", None)
    return Outcome(dict(results), seen, lost)


def recorded_plan(
    recording: Recording,
    key: object,
    numbers: Mapping[str, Number],
    begun: Callable[[Mapping[str, Tensor]], tuple[Plan, DeviceLine, Mapping[str, Number]]],
) -> Plan | None:
    """Begin a search, and move to its first trial, as a recording; None: nothing was done.

    The numbers that `begun` gives besides are among the recording's results.
    """
    names = [f"planned {name}" for name in Plan._fields[:-1]]

    def work(now: Mapping[str, Tensor]) -> dict[str, Number]:
        plan, line, more = begun(now)
        line.move_to(plan.trial)
        return {**dict(zip(names, plan, strict=False)), **more}

    if not recording.done(key, numbers, work):
        return None
    return Plan(*(recording.results[name] for name in names))


def clear(layout: Layout, vector: Buffer, lost: Number) -> None:
    """Make it zero where `lost` is true."""
    at_once = one_pass.serves(layout)
    for block in vector.blocks:
        if at_once:
            one_pass.clear(block, lost)
        else:
            block.masked_fill_(lost.to(block.device), 0.0)
