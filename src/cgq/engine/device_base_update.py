"""A base's update on an accelerator; on CUDA an unsearched step is two launches and the base's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cgq.engine.base_update import BaseUpdate
from cgq.engine.device_direction import DeviceDirection, clear
from cgq.engine.direction import Outcome, Plan
from cgq.rules.scalars import Number
from cgq.vectors.device_line import DeviceLine
from cgq.vectors.products import share_ahead


class DeviceBaseUpdate(DeviceDirection, BaseUpdate):
    """The update of a base that is given zeros for a gradient that is not finite."""

    is_lost = False  # as far as the host knows
    _has_begun = False  # by a recording

    def _gradient_parts(self) -> Callable[[], Any]:
        """A copy only where one is needed; else it lies where the update will be noted."""
        displacement, grads = self._displacement, self._grads
        gathered = displacement.gradients.of(grads)
        if self._searched:
            gathered = self.layout.gathered(grads)
        elif gathered is None:
            torch._foreach_copy_(displacement.direction.views, grads)
            gathered = displacement.direction
        held = self._held = gathered
        return lambda: held.parts

    def _measure(self, loss: Tensor | float | None) -> None:
        self._has_begun = self._begins_at_once(loss)
        if not self._has_begun:
            super()._measure(loss)

    def _begins_at_once(self, loss: Tensor | float | None) -> bool:
        """Measure and clear the gradient and keep θ as a recording; False: nothing was done."""
        displacement, held = self._displacement, self._held
        recording = displacement.beginning
        # A rate of zero may ask whether the gradient is zero too.
        if self._searched or self.ranks is not None or not (self._rho and recording.is_possible):
            return False
        displacement.own_memory()  # which finds out where they are
        key = (
            displacement.parameters.places,
            None if held is displacement.direction else displacement.gradients.places,
            self.sign,
        )

        def work(now: Mapping[str, Tensor]) -> dict[str, Number]:
            phi_0 = self._phi_0(now.get("loss"))
            nil = 0.0 * phi_0 * self._named("g", {}, lambda: held.parts, self.sign).length()
            clear(held, nil != 0.0)
            displacement.begin()
            return {"loss": phi_0, "nil": nil}

        if not recording.done(key, {} if loss is None else {"loss": loss}, work):
            return False
        displacement.holds_last_step = True
        self._loss, self._nil = recording.results["loss"], recording.results["nil"]
        return True

    def begin(self) -> None:
        if not self._has_begun:
            super().begin()

    def update(self, base_step: Callable[[], object]) -> None:
        if not self._has_begun:
            clear(self._held, self._nil != 0.0)
        if self._held.views[0] is not self._grads[0]:
            torch._foreach_copy_(self._grads, self._held.views)
        base_step()
        if self._searched:
            self._displacement.end()
            self._displacement.undo()

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
            step = self._followed(self._plan_of(now["share"]))
            return {**step.numbers, "loss": step.loss, "lost": step.skipped}

        recording, share = displacement.ending, self.average_step(self._rho)
        if not recording.done(key, {"share": share}, work):
            return None
        results = recording.handed_out()
        lost, seen = results.pop("lost") != 0.0, results.pop("loss")
        return Outcome(results, seen, lost)

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
        """The points θ + α·d."""
        displacement = self._displacement
        return DeviceLine(displacement, displacement.along, displacement.scratch)

    def move(self, plan: Plan) -> None:
        displacement = self._displacement
        point = displacement.direction  # which is not needed any more
        DeviceLine(displacement, displacement.along, displacement.scratch, point).move_to(
            plan.trial
        )

    def move_unless(self, lost: Tensor, plan: Plan) -> None:
        self.withhold(lost)
        self.move(plan)

    def withhold(self, lost: Tensor) -> None:
        clear(self._displacement.direction, lost)

    def _ceiling(self, d: Number, theta: Number) -> Number:
        return self._part(self._rho, d, theta, self._nil).nan_to_num_(nan=0.0, posinf=0.0)

    def _part(self, share: Number, d: Tensor, theta: Tensor, nil: Tensor) -> Number:
        """share·|θ|/|d|: NaN where `nil` is, infinite or NaN where nothing was moved.

        A norm sums squares in the weights' dtype, so that what is too small for the range of this
        quotient has no length at all.
        """
        theta = torch.maximum(theta, self._displacement.least_on_device)
        return theta / d * share + nil
