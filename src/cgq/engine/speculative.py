"""A search on an accelerator: measured ahead of the host, which then looks only once."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from cgq.engine.device_direction import DeviceDirection
from cgq.engine.direction import Outcome, Plan
from cgq.engine.searched_step import SearchedStep, checked
from cgq.rules.parabola import two_point
from cgq.rules.quadratic_search import BACKTRACK
from cgq.rules.scalars import Number, as_tensor, choose, is_finite, least, scalar_dtype, stacked
from cgq.vectors.device_line import DeviceLine


class SpeculativeStep(SearchedStep):
    """A step whose first measurements do not wait for the host.

    The host would have to wait for each loss before it could say where the next is measured. So
    the first fit, `two_point`, is made where the losses are, and all is read at once. The search
    stays with the rule, which is given the losses it asks for, or measures further. Where it ends
    with the first trial, the second measurement is unused, and both are where the host then sees
    that there was nothing to search.
    """

    def take(self, loss: Tensor | float) -> Outcome:
        """As on the host; only a search that begins otherwise is waited for."""
        plan = self._direction.plan(loss, self._objective.rounding)
        if self._options.begins_with_two_point:
            return self._measured_ahead(plan, loss)
        plan = plan.read(self._direction.layout.device)
        return self._searched(plan, loss) if self._has_line(plan) else self._unsearched(plan)

    def _measured_ahead(self, plan: Plan, loss: Tensor | float) -> Outcome:
        """Measure the first trial, and perhaps the next; land there; then look."""
        direction, device = cast(DeviceDirection, self._direction), self._direction.layout.device
        line = cast(DeviceLine, self._line(plan))
        # A batch that is lost is measured where it stands: its direction leads to NaN.
        lost = plan.nil * plan.slope != 0.0
        direction.withhold(lost)
        plan = plan._replace(trial=choose(lost, 0.0, plan.trial))
        # All of them tensors: of a float and a tensor torch makes another quotient than the host.
        # But not the last, a length: nobody asks for it here.
        plan = Plan(*(as_tensor(number, device) for number in plan[:-1]))
        steps = [plan.trial]
        losses = [as_tensor(self._phi(line, plan.trial), device)]
        # A first trial at the ceiling is mostly the last: one wait more costs less then. And in
        # narrow numbers the device could not say where the host will go.
        if self._options.shrinks_trial and scalar_dtype(device) == torch.float64:
            steps.append(_next_trial(plan, losses[0]))
            losses.append(as_tensor(self._phi(line, steps[1]), device))
        landed = self._applied(steps[-1], plan)[1] if self._options.smoothing else steps[-1]
        line.move_to(landed)
        *numbers, at = stacked(device, *plan[:-1], *steps, *losses, landed).tolist()
        line.stands_at(at)
        trials = len(steps)
        plan, measured = Plan(*numbers[: -2 * trials]), numbers[-2 * trials :]
        steps, losses = measured[:trials], measured[trials:]
        known = dict(zip(steps[::-1], losses[::-1], strict=True))  # at one point, the first counts
        if not self._has_line(plan):
            line.move_back()
            self._objective.end_probes()
            self._error = None  # what a batch that is lost has raised is no news
            return self._unsearched(plan)
        search = self._options.rule(
            lambda step: known[step] if step in known else float(self._phi(line, step)),
            self._start(plan, loss),
        )
        unused = len(steps) - len(known)
        return self._landed(replace(checked(search), unused=unused), plan, line)


def _next_trial(plan: Plan, first: Number) -> Number:
    """Where `quadratic_search` goes after the first trial; the trial again where it would end."""
    q = two_point(plan.loss, plan.slope, [plan.trial], [first])
    minimum = least(q.minimiser, plan.ceiling)
    back = BACKTRACK * plan.trial
    ahead = choose(q.a > 0, choose(q.minimiser > 0, minimum, back), plan.trial)
    ahead = choose(q.is_level(plan.trial, plan.noise), plan.trial, ahead)
    return choose(is_finite(first) & is_finite(q.a) & is_finite(plan.slope), ahead, back)
