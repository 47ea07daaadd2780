"""A base's update on an accelerator; on CUDA few launches around those of the base."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

from cgq.engine.base_update import BaseUpdate
from cgq.engine.device_direction import (
    DeviceDirection,
    as_results,
    clear,
    outcome_of,
    recorded_plan,
)
from cgq.engine.direction import Outcome, Plan
from cgq.rules.scalars import Number
from cgq.vectors.device_line import DeviceLine
from cgq.vectors.layout import Buffer
from cgq.vectors.products import share_ahead
from cgq.vectors.recording import Recording


class DeviceBaseUpdate(DeviceDirection, BaseUpdate):
    """The update of a base that is given zeros for a gradient that is not finite."""

    is_lost = False  # as far as the host knows
    _has_begun = False  # by a recording

    def _gradient_parts(self) -> Callable[[], Any]:
        """A copy only where one is needed; else it lies where the update will be noted."""
        displacement, grads = self._displacement, self._grads
        own = displacement.gradients.whole(grads)
        if self._searched and not self._may_record:
            held = self.layout.gathered(grads)
        else:
            held = displacement.spare if self._searched else own or displacement.direction
            if held is not own:
                _copy(held, own, grads, back=False)
        self._own, self._held = own, held
        return lambda: held.parts

    @property
    def _recording(self) -> Recording:
        """Of what is done before the base moves."""
        return self._displacement.opening if self._searched else self._displacement.beginning

    @property
    def _may_record(self) -> bool:
        # A rate of zero may ask whether the gradient is zero too.
        return self.ranks is None and bool(self._rho) and self._recording.is_possible

    def _measure(self, loss: Tensor | float | None) -> None:
        self._has_begun = self._begins_at_once(loss)
        if not self._has_begun:
            super()._measure(loss)

    def _begins_at_once(self, loss: Tensor | float | None) -> bool:
        """Measure and clear the gradient and keep θ as a recording; False: nothing was done."""
        displacement, held, recording = self._displacement, self._held, self._recording
        if not self._may_record:
            return False
        displacement.own_memory()  # which finds out where they are
        holds = displacement.holds_last_step
        key = (
            displacement.parameters.places,
            displacement.gradients.places if held is self._own else None,
            self.sign,
            self._options,
            self._searched and holds,
        )

        def work(now: Mapping[str, Tensor]) -> dict[str, Number]:
            self._dots.clear()  # of another batch
            BaseUpdate._measure(self, now.get("loss"))
            clear(self.layout, held, self._nil != 0.0)
            displacement.begin()
            seen = {"agreement": self._agreement} if self._searched else {}
            return {"measured loss": self._loss, "nil": self._nil, **seen}

        if not recording.done(key, {} if loss is None else {"loss": loss}, work):
            self._dots.clear()  # a capture that failed has computed none
            displacement.holds_last_step = holds
            return False
        displacement.holds_last_step = True
        self._loss, self._nil, *last = recording.results.values()
        if last:
            (self._agreement,) = last
        return True

    def begin(self) -> None:
        if not self._has_begun:
            super().begin()

    def update(self, base_step: Callable[[], object]) -> None:
        if not self._has_begun:
            clear(self.layout, self._held, self._nil != 0.0)
        if self._held is not self._own:
            _copy(self._held, self._own, self._grads, back=True)
        base_step()

    def plan(self, loss: Tensor | float, error: float) -> Plan:
        self._displacement.end()
        self._displacement.undo()
        return super().plan(loss, error)

    def begun_at_once(self, loss: Tensor | float, error: float) -> tuple[Plan, DeviceLine] | None:
        displacement = self._displacement
        if not self._has_begun or self._f is not self._g:
            return None
        displacement.own_memory()  # the base may have given them other memory
        key = displacement.opening.version, displacement.parameters.places, error

        def begun(now: Mapping[str, Tensor]) -> tuple[Plan, DeviceLine, dict[str, Number]]:
            self._dots.clear()  # of another batch
            update = copy(self)
            update._rho = now["rho"]
            return *update.begun(loss, error), {}

        plan = recorded_plan(displacement.outset, key, {"rho": self._rho}, begun)
        self._dots.clear()  # a capture that failed has computed none
        return None if plan is None else (plan, self.line(plan))

    def unsearched_step(self, loss: Tensor | float | None, limit: Number = math.inf) -> Outcome:
        """As every direction; where such a step has come often enough, all of it at once."""
        outcome = self._replayed() if self._has_begun else None
        if outcome is None:
            if self._has_begun:
                self._loss = self._loss.clone()  # which the next step will overwrite
            self._displacement.end()
            outcome = super().unsearched_step(loss, limit)
        return outcome._replace(loss=None) if loss is None else outcome

    def _replayed(self) -> Outcome | None:
        """Measure the update and move as a recording; None: nothing was done."""
        displacement = self._displacement
        displacement.own_memory()  # the base may have given them other memory
        key = displacement.beginning.version, displacement.parameters.places

        def work(now: Mapping[str, Tensor]) -> dict[str, Number]:
            displacement.end()
            return as_results(self._followed(self._plan_of(now["share"])))

        recording, share = displacement.ending, self.average_step(self._rho)
        if not recording.done(key, {"share": share}, work):
            return None
        return outcome_of(recording.handed_out())

    def average_plan(self, loss: Tensor | float | None) -> Plan:
        return self._plan_of(self.average_step(self._rho))

    def _plan_of(self, share: Number) -> Plan:
        """A step of this length, relative to the weights."""
        displacement = self._displacement
        d = self._named("d", {}, lambda: displacement.direction.parts)
        theta = self._named("θ", {}, lambda: displacement.scratch.parts)
        share_ahead([(d, d), (theta, theta)])
        length, size = self._agreed(d.length(), theta.length())
        nil = self._nil * length
        return Plan(self._loss, nil, trial=self._part(share, length, size, nil))

    def line(self, plan: Plan) -> DeviceLine:
        """The points θ + α·d. The gradient is not asked for any more."""
        displacement = self._displacement
        return DeviceLine(displacement, displacement.along, displacement.scratch, self._held)

    def move(self, plan: Plan) -> None:
        displacement = self._displacement
        point = displacement.direction  # which is not needed any more
        DeviceLine(displacement, displacement.along, displacement.scratch, point).move_to(
            plan.trial
        )

    def move_unless(self, lost: Number, plan: Plan) -> None:
        self.withhold(lost)
        self.move(plan)

    def withhold(self, lost: Number) -> None:
        clear(self.layout, self._displacement.direction, lost)

    def _ceiling(self, d: Number, theta: Number) -> Number:
        return self._part(self._rho, d, theta, self._nil).nan_to_num_(nan=0.0, posinf=0.0)

    def _part(self, share: Number, d: Tensor, theta: Tensor, nil: Tensor) -> Number:
        """share·|θ|/|d|: NaN where `nil` is, infinite or NaN where nothing was moved.

        A norm sums squares in the weights' dtype, so that what is too small for the range of this
        quotient has no length at all.
        """
        theta = torch.maximum(theta, self._displacement.least_on_device)
        return theta / d * share + nil


def _copy(gathered: Buffer, own: Buffer | None, grads: list[Tensor], *, back: bool) -> None:
    """Gather the gradients, which may be `own` memory in one piece, or put them back."""
    pair = (gathered.views, grads) if own is None else (gathered.blocks, own.blocks)
    torch._foreach_copy_(*(pair[::-1] if back else pair))
