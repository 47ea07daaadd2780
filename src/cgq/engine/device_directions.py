"""Directions on an accelerator: nothing is read that the host would have to wait for."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cgq.engine.base_update import BaseUpdate
from cgq.engine.conjugate import Conjugate, along
from cgq.engine.direction import Direction, Outcome, Plan
from cgq.engine.state import Residual
from cgq.rules.scalars import Number, as_tensor, choose
from cgq.rules.watch import Watch
from cgq.vectors.device_line import DeviceLine
from cgq.vectors.layout import Buffer
from cgq.vectors.products import DeviceVector, Dots, Vector, share_ahead


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

    def unsearched_step(self, loss: Tensor | float | None, limit: float = math.inf) -> Outcome:
        """Move by the average step; the device skips it where something is not finite."""
        plan = self.average_plan(loss)
        lost, trial = plan.nil != 0.0, plan.trial.nan_to_num_(nan=0.0, posinf=0.0)
        if limit < math.inf:
            trial = trial.masked_fill_(as_tensor(plan.loss, trial.device) > limit, 0.0)
        plan = plan._replace(trial=trial)
        self.move_unless(lost, plan)
        numbers = {
            name: choose(lost, self._before[name], value)
            for name, value in self.numbers(plan).items()
        }
        seen = None if loss is None else plan.loss
        return Outcome({"step_size": plan.trial, **numbers}, seen, lost)


class DeviceConjugate(DeviceDirection, Conjugate):
    """The conjugate direction, with the residual gathered in the scratch vector."""

    def _new_residual(self) -> Residual:
        state, gathered = self._state, self._state.gradients.of(self._grads)
        if gathered is None:
            torch._foreach_copy_(state.scratch.views, self._grads)
        sources = state.scratch if gathered is None else gathered
        for r, g in zip(state.scratch.blocks, sources.blocks, strict=True):
            torch.mul(g, -self.sign, out=r)
        values = self.layout.values()
        for group, members in self.layout.sections:
            if decay := self._decays[group]:
                residuals = [state.scratch.views[index] for index in members]
                torch._foreach_add_(residuals, [values[index] for index in members], alpha=-decay)
        return Residual(state.scratch, 1.0)

    def _theta_parts(self) -> Callable[[], Any]:
        snapshot = self._snapshot = cache(self._state.copied_parameters)
        return lambda: snapshot().parts

    def _loss_gradient(self, unclipped: list[Tensor] | None, dots: Dots) -> Vector | None:
        return None if unclipped is None else super()._loss_gradient(unclipped, dots)

    def line(self, plan: Plan) -> DeviceLine:
        """The points θ + α·(a·r + b·p)."""
        state, (a, b) = self._state, self._mixture(plan.beta)
        at = along(self._shares, (state.scratch, a), (state.direction, b))
        return DeviceLine(state, at, self._snapshot())

    def move(self, plan: Plan) -> None:
        self._state.remember(self._residual, plan.beta, self._squares)
        DeviceLine(self._state, self._along_new(plan)).move_to(plan.trial)

    def move_unless(self, lost: Tensor, plan: Plan) -> None:
        """What is skipped may be NaN: hence `where`; a zero factor is for what is kept only."""
        state = self._state
        state.squares = None  # nobody here knows whose they are
        factor = choose(lost, 1.0, plan.beta)
        residuals = state.direction if state.residual is None else state.residual
        for p, h, r in zip(
            state.direction.blocks, residuals.blocks, state.scratch.blocks, strict=True
        ):
            left_out = lost.to(p.device)
            if h is p:
                p.mul_(factor.to(p)).add_(r.masked_fill_(left_out, 0.0))
            else:
                torch.where(left_out, h, r, out=h)
                p.mul_(factor.to(p)).addcmul_(h, (~left_out).to(p))
        DeviceLine(state, self._along_new(plan)).move_to(plan.trial)

    def remember(self, plan: Plan) -> None:
        self._state.remember(self._residual, plan.beta, self._squares)

    def withhold(self, lost: Tensor) -> None:
        _clear(self._state.scratch, lost)

    def _number(self, value: Number) -> Number:
        return value


class DeviceBaseUpdate(DeviceDirection, BaseUpdate):
    """The update of a base that is given zeros for a gradient that is not finite."""

    is_lost = False  # as far as the host knows

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

    def update(self, base_step: Callable[[], object]) -> None:
        _clear(self._held, self._nil != 0.0)
        if self._held.views[0] is not self._grads[0]:
            torch._foreach_copy_(self._grads, self._held.views)
        base_step()
        self._displacement.end()
        if self._searched:
            self._displacement.undo()

    def average_plan(self, loss: Tensor | float | None) -> Plan:
        share_ahead([(self._d, self._d), (self._theta, self._theta)])
        d, theta = self._agreed(self._d.length(), self._theta.length())
        nil = self._nil * d
        return Plan(self._loss, nil, trial=self._part(self.average_step(1.0), d, theta, nil))

    def line(self, plan: Plan) -> DeviceLine:
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
        _clear(self._displacement.direction, lost)

    def _ceiling(self, d: Number, theta: Number) -> Number:
        return self._part(1.0, d, theta, self._nil).nan_to_num_(nan=0.0, posinf=0.0)

    def _part(self, share: float, d: Tensor, theta: Tensor, nil: Tensor) -> Tensor:
        """A share of the ceiling: NaN where `nil` is, infinite or NaN where nothing was moved.

        A norm sums squares in the weights' dtype, so that what is too small for the range of this
        quotient has no length at all.
        """
        theta = torch.maximum(theta, self._displacement.least_on_device)
        return torch.addcdiv(nil, theta, d, value=share * self._rho)


def _clear(vector: Buffer, lost: Tensor) -> None:
    for block in vector.blocks:
        block.masked_fill_(lost.to(block.device), 0.0)
