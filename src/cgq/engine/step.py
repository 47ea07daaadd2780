"""One step: a direction × a search. Owns no state."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cgq.engine.direction import Direction, Plan
from cgq.engine.options import SearchOptions
from cgq.engine.speculative import measured_ahead
from cgq.evaluation.objective import Objective
from cgq.rules.scalars import Number, choose, least, scalar_dtype, times
from cgq.rules.search import Search, Start
from cgq.rules.trial import smoothed
from cgq.vectors.line import Line
from cgq.vectors.process_group import Ranks


class Outcome(NamedTuple):
    """What became of a step. `skipped` and numbers are tensors where the host did not look."""

    numbers: dict[str, Number]
    """What the next step finds in the groups; none of a step that the host has skipped."""
    loss: Number = None
    """The minimised loss at the old point, as all ranks see it; None: the step saw none."""
    skipped: bool | Tensor = False
    search: Search | None = None
    due: bool = False
    """Whether a search was due, though there may have been nothing to search."""


SKIPPED = Outcome({}, skipped=True)


def unsearched_step(
    direction: Direction, loss: Tensor | float | None, before: Mapping[str, Any]
) -> Outcome:
    """Move by the average step."""
    plan = direction.unsearched_plan(loss)
    seen = None if loss is None else plan.loss
    if direction.layout.on_host:
        outcome = _moved(direction, plan) if plan.nil == 0.0 else SKIPPED
        return outcome._replace(loss=seen)
    lost = plan.nil != 0.0
    plan = plan._replace(trial=plan.trial.nan_to_num_(nan=0.0, posinf=0.0))
    direction.move_unless(lost, plan)
    numbers = {
        name: choose(lost, before[name], value) for name, value in direction.numbers(plan).items()
    }
    return Outcome({"step_size": plan.trial, **numbers}, seen, lost)


def _moved(direction: Direction, plan: Plan) -> Outcome:
    """Move by the plan's trial, without measuring it."""
    direction.move(plan)
    return Outcome({"step_size": plan.trial, **direction.numbers(plan)}, plan.loss)


class SearchedStep:
    """A step that measures the batch loss along its direction.

    Args:
        direction: where to go.
        objective: the batch loss, ready to be probed.
        options: the search, and how what it finds is averaged.
        before: the numbers that the last step left.
        ranks: who must agree on every loss.
    """

    def __init__(
        self,
        direction: Direction,
        objective: Objective,
        options: SearchOptions,
        before: Mapping[str, Any],
        ranks: Ranks,
    ) -> None:
        self._direction, self._objective, self._options = direction, objective, options
        self._before, self._ranks = before, ranks

    def take(self, loss: Tensor | float, undo: ExitStack) -> Outcome:
        """Search, and move to the step found; `undo` learns how to take it back."""
        direction, line = self._direction, None
        plan = direction.plan(loss, self._objective.rounding)
        losses: Mapping[float, float] = {}
        unused = 0
        if not direction.layout.on_host:
            if getattr(self._options.rule, "begins_with_two_point", False):
                line = self._line(plan, undo)
                plan, losses, unused = self._measured_ahead(plan, line)
            else:
                plan = plan.on_host(direction.layout.device)
        if not self._has_line(plan):
            if line is not None:
                line.move_back()
                self._objective.end_probes()
            if not plan.is_finite:
                return SKIPPED
            return _moved(direction, plan._replace(trial=direction.average_step(plan.ceiling)))
        line = line or self._line(plan, undo)
        search = self._search(plan, line, losses, _dtype(loss))
        return self._landed(replace(search, unused=unused), plan, line)

    def _has_line(self, plan: Plan) -> bool:
        """Whether there is something to search: not where it is stationary, or decay climbs."""
        descends = plan.slope < 0.0 or self._options.any_slope
        return plan.is_finite and descends and plan.ceiling > 0.0

    def _line(self, plan: Plan, undo: ExitStack) -> Line:
        self._objective.prepare_probes()
        line = self._direction.line(plan)
        undo.callback(line.move_back)
        return line

    def _phi(self, line: Line, alpha: Number) -> Number:
        """The batch loss at the trial point, as all ranks see it."""
        line.move_to(alpha)
        device = self._direction.layout.device
        (value,) = self._ranks.agreed([self._objective.probe(device)], device)
        return times(self._direction.sign, value)

    def _measured_ahead(self, plan: Plan, line: Line) -> tuple[Plan, Mapping[float, float], int]:
        """The first measurements on an accelerator, which do not wait for the host."""
        device = self._direction.layout.device
        # A batch that is lost is measured where it stands: its direction leads to NaN.
        lost = plan.nil * plan.slope != 0.0
        self._direction.withhold(lost)
        plan = plan._replace(trial=choose(lost, 0.0, plan.trial))

        def land(step: Number) -> Number:
            alpha = self._applied(step, plan)[1] if self._options.smoothing else step
            line.move_to(alpha)
            return alpha

        # A first trial at the ceiling is mostly the last: one wait more costs less then. And in
        # narrow numbers the device could not say where the host will go.
        twice = self._options.shrinks_trial and scalar_dtype(device) == torch.float64
        seen = measured_ahead(plan, lambda step: self._phi(line, step), land, device, twice=twice)
        line.stands_at(seen.landed)
        return seen.plan, seen.losses, seen.unused

    def _search(
        self, plan: Plan, line: Line, losses: Mapping[float, float], dtype: torch.dtype
    ) -> Search:
        """What the search chooses along the line, some losses of which may be known."""
        rule = self._options.rule
        start = Start(
            plan.loss,
            plan.slope,
            trial=plan.trial,
            ceiling=plan.ceiling,
            noise=plan.noise,
            squared_length=plan.squared_length,
            dtype=dtype,
            memory={name: self._before[name] for name in getattr(rule, "memory", ())},
        )
        return rule(
            lambda step: losses[step] if step in losses else float(self._phi(line, step)), start
        )

    def _landed(self, search: Search, plan: Plan, line: Line) -> Outcome:
        """Go to the step found, averaged with those before."""
        average, alpha = self._applied(search.step_size, plan)
        if search.rejected and not search.step_size:  # it told nothing
            average = self._before["average"]
            alpha = self._direction.average_step(plan.ceiling)
        line.move_to(alpha)
        seen = search.seen_with(self._direction.sign)
        if search.evaluations and not alpha:
            return SKIPPED._replace(loss=plan.loss, search=seen)
        self._objective.end_probes()
        self._direction.remember(plan)
        numbers = {
            "step_size": alpha,
            "average": average,
            **self._direction.numbers_after(search, plan),
            **search.memory,
        }
        return Outcome(numbers, plan.loss, search=seen)

    def _applied(self, found: Number, plan: Plan) -> tuple[Number, Number]:
        """The average after a search that found this step, and the α that is applied."""
        unit = 1.0 if self._options.max_relative_step is None else plan.ceiling
        average = smoothed(self._before["average"], found / unit, self._options.smoothing)
        alpha = least(average * unit, plan.ceiling)
        return average, 0.0 if isinstance(found, float) and not found else alpha


def _dtype(loss: Tensor | float) -> torch.dtype:
    return loss.dtype if isinstance(loss, Tensor) else torch.float64
