"""One step along a line: plan, search, move. Owns no state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from cgq.foresight import TWO_POINT_FIRST, Plan, foreseen
from cgq.geometry import Shape
from cgq.ground import Drift, Ground
from cgq.line import FlatLine, Line, drift
from cgq.memory import Vectors
from cgq.objective import Objective
from cgq.options import Options
from cgq.policy import smoothed
from cgq.progress import Progress
from cgq.ranks import Ranks
from cgq.scalars import Number, choose, least, scalar_dtype, stacked
from cgq.search import Search, quadratic_search


class Outcome(NamedTuple):
    """What became of a step. `skipped` and `loss` are tensors where the host did not look."""

    progress: Progress
    skipped: bool | Tensor = False
    search: Search | None = None
    loss: Number = None
    """The minimised loss at the old point, as all ranks see it; None: the step saw none."""
    due: bool = False
    """Whether a search was due, though there may have been nothing to search: the host looked."""


class Step:
    """A mini-batch's gradient, ready to be turned into a move of the parameters.

    `batch` knows slope and ceiling. A step that is skipped has changed nothing.
    """

    def __init__(
        self,
        memory: Vectors,
        grads: list[Tensor],
        shapes: Sequence[Shape],
        batch: Ground,
        *,
        options: Options,
        ranks: Ranks,
        progress: Progress,
    ) -> None:
        self._memory, self._grads, self._shapes = memory, grads, shapes
        self._options, self._ranks, self._before = options, ranks, progress
        self._batch = batch

    def searched(self, objective: Objective, loss: Tensor | float) -> Outcome:
        """Move to the minimum of the parabola along the line."""
        plan, layout = self._batch.plan(loss, objective.rounding), self._memory.layout
        if not layout.on_host:
            if self._options.fit in TWO_POINT_FIRST:
                return self._foreseen(objective, plan)
            plan = Plan(*stacked(layout.device, *plan).tolist())
        if not _leads_down(plan):
            return self._without_line(plan)
        objective.prepare_probes()
        return self._along(self._line(plan), objective, plan)

    def _foreseen(self, objective: Objective, plan: Plan) -> Outcome:
        """The same on an accelerator, where the first measurements do not wait for the host."""
        objective.prepare_probes()
        line, device = self._flat_line(plan), self._memory.layout.device

        def land(step: Number) -> Number:
            alpha = self._applied(step, plan)[1] if self._options.smoothing else step
            line.move_to(alpha)
            return alpha

        try:
            seen = foreseen(
                plan,
                lambda alpha: self._phi(objective, line, alpha),
                land,
                device,
                # A first trial at the ceiling is mostly the last: one wait more costs less then.
                # And in narrow numbers the device could not say where the host will go.
                twice=self._options.shrinks_trial and scalar_dtype(device) == torch.float64,
            )
        except BaseException:
            line.move_back()
            raise
        if not _leads_down(seen.plan):
            line.move_back()
            objective.end_probes()
            return self._without_line(seen.plan)
        line.stands_at(seen.landed)
        return self._along(line, objective, seen.plan, seen.losses, seen.in_vain)

    def unsearched(self, loss: Tensor | float | None) -> Outcome:
        """Move by the average step."""
        found = self._batch.drift(loss)
        if not self._memory.layout.on_host:
            outcome = self._drifted_unless_lost(found)
        elif found.nil == 0.0:
            outcome = self._drifted(found)
        else:
            outcome = Outcome(self._before, skipped=True)
        return outcome._replace(loss=None if loss is None else found.phi_0)

    def _without_line(self, plan: Plan) -> Outcome:
        if not _is_finite(plan):
            return Outcome(self._before, skipped=True)
        alpha = self._batch.average_step(plan.ceiling)
        outcome = self._drifted(Drift(plan.phi_0, 0.0, alpha, plan.beta, plan.reach))
        return outcome._replace(loss=plan.phi_0)

    def _drifted(self, found: Drift) -> Outcome:
        self._memory.remember(self._batch.residual, found.beta)
        self._drift(found.alpha, found.beta)
        return Outcome(
            self._before._replace(step_size=found.alpha, beta=found.beta, reach=found.reach)
        )

    def _drifted_unless_lost(self, found: Drift) -> Outcome:
        """The same where the host does not look: what is not finite is left out by the device."""
        lost, before = found.nil != 0.0, self._before
        alpha = found.alpha.nan_to_num_(nan=0.0, posinf=0.0)
        beta = choose(lost, before.beta, found.beta)
        reach = choose(lost, before.reach, found.reach)
        self._memory.remember_unless(lost, beta)
        self._drift(alpha, beta)
        return Outcome(before._replace(step_size=alpha, beta=beta, reach=reach), skipped=lost)

    def _drift(self, alpha: Number, beta: Number) -> None:
        nesterov = self._options.nesterov
        drift(self._memory, self._batch.residual, self._shapes, alpha, beta, nesterov=nesterov)

    def _line(self, plan: Plan) -> Line | FlatLine:
        if not self._memory.layout.on_host:
            return self._flat_line(plan)
        a, b = self._batch.mixture(plan.beta)
        return Line(self._memory, self._grads, self._shapes, sign=self._batch.sign, a=a, b=b)

    def _flat_line(self, plan: Plan) -> FlatLine:
        a, b = self._batch.mixture(plan.beta)
        return FlatLine(self._memory, self._batch.snapshot.buffer, self._shapes, a=a, b=b)

    def _applied(self, found: Number, plan: Plan) -> tuple[Number, Number]:
        """The average after a search that found this step, and the α that is applied."""
        unit = 1.0 if self._options.max_relative_step is None else plan.ceiling
        average = smoothed(self._before.average, found / unit, self._options.smoothing)
        alpha = least(average * unit, plan.ceiling)
        return average, alpha if isinstance(found, Tensor) or found else 0.0

    def _phi(self, objective: Objective, line: Line | FlatLine, alpha: Number) -> Number:
        line.move_to(alpha)
        value = objective.probe(self._memory.layout.device)
        return self._batch.sign * self._ranks.mean_number(value)

    def _along(
        self,
        line: Line | FlatLine,
        objective: Objective,
        plan: Plan,
        known: Mapping[float, float] = MappingProxyType({}),
        in_vain: int = 0,
    ) -> Outcome:
        """Search the line, of which the losses `known` have been measured already."""
        options, before, memory = self._options, self._before, self._memory
        try:
            search = quadratic_search(
                lambda at: known[at] if at in known else float(self._phi(objective, line, at)),
                plan.phi_0,
                plan.slope,
                trial=plan.trial,
                ceiling=plan.ceiling,
                fit=options.fit,
                max_fits=options.max_fits,
                noise=plan.noise,
            )
            average, alpha = self._applied(search.step_size, plan)
            if told_nothing := search.rejected and not search.step_size:
                average, alpha = before.average, self._batch.average_step(plan.ceiling)
            line.move_to(alpha)
        except BaseException:
            line.move_back()
            raise
        search = replace(search.seen_with(self._batch.sign), in_vain=in_vain)
        if not alpha:
            return Outcome(before, skipped=True, search=search, loss=plan.phi_0)
        objective.end_probes()
        new = self._batch.residual
        if memory.layout.on_host and memory.is_gathered(new):  # and overwritten by the line
            new = memory.residual_at_snapshot(self._grads, self._batch.sign, self._batch.decays)
        memory.remember(new, plan.beta)
        decay = before.decay
        if options.shrinks_trial and not told_nothing:
            decay = decay.after(self._batch.first_trial(plan.ceiling), search.step_size)
        progress = Progress(alpha, plan.beta, average, decay, plan.reach)
        return Outcome(progress, search=search, loss=plan.phi_0)


def _is_finite(plan: Plan) -> bool:
    return all(map(math.isfinite, (plan.phi_0, plan.size, plan.slope)))


def _leads_down(plan: Plan) -> bool:
    """Whether there is something to search: not where it is stationary, or decay climbs."""
    return _is_finite(plan) and plan.slope < 0.0 < plan.ceiling
