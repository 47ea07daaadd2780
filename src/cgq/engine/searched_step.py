"""A step that searches: a direction × a search. Owns no state."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cgq.engine.direction import SKIPPED, Direction, Outcome, Plan
from cgq.engine.options import SearchOptions
from cgq.engine.rollback import Rollback
from cgq.evaluation.objective import Objective
from cgq.rules.scalars import Number, least, times
from cgq.rules.search import Search, Start
from cgq.rules.when_to_search import smoothed
from cgq.vectors.line import Line

PATIENCE = 10  # steps in which no search could spare an evaluation
PLAIN = 100.0  # times the noise of a loss: a change that it would show


class SearchedStep:
    """A step that measures the batch loss along its direction.

    Args:
        direction: where to go.
        objective: the batch loss, ready to be probed.
        options: the search, and how what it finds is averaged.
        before: the numbers that the last step left.
        rollback: learns how to take the step back.
        check_start: whether to measure φ(0) once more, where that is within the evaluations that a
            search may cost, or was not for long.
    """

    def __init__(
        self,
        direction: Direction,
        objective: Objective,
        options: SearchOptions,
        before: Mapping[str, Any],
        rollback: Rollback,
        *,
        check_start: bool = False,
    ) -> None:
        self._direction, self._objective, self._options = direction, objective, options
        self._before, self._rollback = before, rollback
        self._measured, self._raised = 0, 0
        self._error: Exception | None = None
        self._check_start = check_start

    def take(self, loss: Tensor | float) -> Outcome:
        """Search, and move to the step found; by the average step where nothing descends."""
        plan = self._direction.plan(loss, self._objective.rounding)
        return self._searched(plan, loss) if self._has_line(plan) else self._unsearched(plan)

    def _has_line(self, plan: Plan) -> bool:
        """Whether there is something to search: not where it is stationary, or decay climbs."""
        descends = plan.slope < 0.0 or self._options.any_slope
        return plan.is_finite and descends and plan.ceiling > 0.0

    def _unsearched(self, plan: Plan) -> Outcome:
        if not plan.is_finite:
            return SKIPPED._replace(loss=plan.loss)
        step = self._direction.average_step(plan.ceiling)
        self._rollback.interrupts.hold()
        return self._direction.moved(plan._replace(trial=step))

    def _searched(self, plan: Plan, loss: Tensor | float) -> Outcome:
        line = self._line(plan)
        search = self._options.rule(
            lambda step: float(self._phi(line, step)), self._start(plan, loss)
        )
        return self._landed(checked(search, self._options.memory), plan, line)

    def _line(self, plan: Plan) -> Line:
        self._objective.prepare_probes()
        line = self._direction.line(plan)
        self._rollback.callback(line.move_back)
        return line

    def _phi(self, line: Line, alpha: Number) -> Number:
        """The batch loss at the trial point, as all ranks see it; NaN where the closure raises.

        The batch's own pass did not, so this point is too far. A rank that raised still answers
        the others.
        """
        line.move_to(alpha)
        direction, device = self._direction, self._direction.layout.device
        self._measured += 1
        value: Number
        try:
            value = self._objective.probe(device)
        except Exception as error:
            self._raised, self._error, value = self._raised + 1, error, math.nan
        if direction.ranks is not None:
            (value,) = direction.ranks.agreed([value], device)
        return times(direction.sign, value)

    def _start(self, plan: Plan, loss: Tensor | float) -> Start:
        """What the search is told."""
        return Start(
            plan.loss,
            plan.slope,
            trial=plan.trial,
            ceiling=plan.ceiling,
            noise=plan.noise,
            tolerance=self._options.tolerance(self._before, -plan.slope * plan.trial),
            squared_length=plan.squared_length,
            dtype=getattr(loss, "dtype", torch.float64),
            memory={name: self._before[name] for name in self._options.memory},
        )

    def _landed(self, search: Search, plan: Plan, line: Line) -> Outcome:
        """Go to the step found, averaged with those before."""
        raised = self._rejection(search)
        repeats = None
        if self._check_start and self._can_check(search):
            repeats = self._repeats_start(line, plan)
            search = replace(search, unused=search.unused + 1)
        old = self._before["average"]
        average, alpha = self._applied(min(search.step_size, plan.ceiling), plan, old)
        if search.rejected and not search.step_size:  # it told nothing
            average = old
            alpha = self._direction.average_step(plan.ceiling)
        line.move_to(alpha)
        # All that is asked of a search, which may be the user's, before what cannot be undone.
        endless = search.accepted and search.curvature <= 0.0
        # The trial is taken; and if it has shrunk, it was too long before.
        endless = endless and self._before.get("trial_scale", 1.0) == 1.0
        outcome = Outcome(
            {"step_size": alpha, "average": average, **search.memory},
            plan.loss,
            ceiling=plan.ceiling,
            search=search.seen_with(self._direction.sign),
            capped=bool(search.capped or endless),
            agreement=plan.agreement,
            own_agreement=plan.own_agreement,
            raised=raised,
            is_constant=_is_constant(search, plan),
            repeats=repeats,
        )
        if search.evaluations and not alpha:
            return outcome._replace(numbers={}, skipped=True)
        self._objective.end_probes()
        self._rollback.interrupts.hold()
        line.stay()
        self._direction.remember(plan)
        outcome.numbers.update(self._direction.numbers(plan, search))
        return outcome

    def _can_check(self, search: Search) -> bool:
        """Whether an evaluation is left, or none was for long, though there were finite ones.

        A closure whose losses rise from call to call leaves none: there every trial seems to climb.
        """
        if self._before["steps"] >= PATIENCE and any(map(math.isfinite, search.trial_losses)):
            return True
        return search.evaluations <= self._options.max_fits

    def _repeats_start(self, line: Line, plan: Plan) -> bool:
        """Whether φ(0) is what it was, as far as rounding allows."""
        line.move_back()
        again = float(self._phi(line, 0.0))
        self._error = None
        return bool(abs(again - plan.loss) <= math.sqrt(plan.noise * abs(plan.loss)))

    def _rejection(self, search: Search) -> str:
        """What a rejected trial raised, if one did. Where every trial did, it is raised anew."""
        error, self._error = self._error, None  # whose frames refer to this object
        if search.evaluations and not any(map(math.isfinite, search.trial_losses)):
            self._refuse_to_go_on(error if self._raised == self._measured else None)
        return "" if error is None else f"{type(error).__name__}: {error}"

    def _refuse_to_go_on(self, error: Exception | None) -> None:
        """Raise on every rank what all trials of one have raised: it was not their length."""
        ranks, device = self._direction.ranks, self._direction.layout.device
        somewhere: Number = error is not None
        if ranks is not None:
            (somewhere,) = ranks.agreed([float(somewhere)], device)
        if error is not None:
            raise error
        if somewhere:
            raise RuntimeError("Every trial of the line search raised on another rank: see there.")

    def _applied(self, found: Number, plan: Plan, old: Number) -> tuple[Number, Number]:
        """The average, once this, after a search that found this step, and the α to apply."""
        unit = 1.0 if self._options.max_relative_step is None else plan.ceiling
        average = smoothed(old, found / unit, self._options.smoothing)
        if self._options.is_watched:  # a step that proved too long is not to be repeated
            average = least(average, found / unit)
        alpha = least(average * unit, plan.ceiling)
        return average, 0.0 if isinstance(found, (int, float)) and not found else alpha


def _is_constant(search: Search, plan: Plan) -> bool:
    """Whether several trials gave φ(0) again, where rounding does not explain it."""
    if len(search.trial_steps) < 2 or {*search.trial_losses} != {plan.loss}:
        return False
    return bool(-plan.slope * min(search.trial_steps) > PLAIN * plan.noise)


def checked(search: object, memory: Container[str]) -> Search:
    """What a search with this memory returned, if a step can be made of it."""
    if not isinstance(search, Search):
        raise TypeError(f"A search must return a cgq.Search, not {search!r}.")
    if not 0.0 <= search.step_size < math.inf:
        raise ValueError(
            f"A search returned the step {search.step_size}. Return a finite number, or 0.0 where "
            "no trial can be taken."
        )
    if not all(map(memory.__contains__, search.memory)):
        raise ValueError(
            f"A search returned the memory {search.memory}. Name what it keeps, with first values, "
            "in an attribute `memory` of the search."
        )
    return search
