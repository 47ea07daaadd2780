"""A search on an accelerator: measured ahead of the host, which then looks only once."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from cgq.engine.ahead import Ahead
from cgq.engine.device_direction import DeviceDirection
from cgq.engine.direction import Outcome, Plan
from cgq.engine.searched_step import SearchedStep, checked
from cgq.rules.scalars import as_tensor, scalar_dtype


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
        if self._options.begins_with_two_point:
            return self._measured_ahead(loss)
        plan = self._direction.plan(loss, self._objective.rounding)
        plan = plan.read(self._direction.layout.device)
        return self._searched(plan, loss) if self._has_line(plan) else self._unsearched(plan)

    def _measured_ahead(self, loss: Tensor | float) -> Outcome:
        """Measure the first trial, and perhaps the next; land there; then look."""
        direction, device = cast(DeviceDirection, self._direction), self._direction.layout.device
        error = self._objective.rounding
        self._objective.prepare_probes()
        begun = direction.begun_at_once(loss, error)
        plan, line = begun or direction.begun(loss, error)
        ahead = Ahead(direction.workspace, plan, line, is_recorded=begun is not None)
        self._rollback.callback(line.move_back)
        trials, last = 1, as_tensor(self._phi(line, plan.trial), device)
        # A first trial at the ceiling is mostly the last: one wait more costs less then. And in
        # narrow numbers the device could not say where the host will go.
        if self._options.shrinks_trial and scalar_dtype(device) == torch.float64:
            trials, last = 2, as_tensor(self._phi(line, ahead.next_trial(last)), device)
        applied = self._applied if self._options.smoothing else None
        *numbers, at = ahead.landed(last, self._before["average"], applied)
        line.stands_at(at)
        plan, measured = Plan(*numbers[: -2 * trials]), numbers[-2 * trials :]
        # Where both are one point, the first counts.
        known = dict(zip(measured[trials - 1 :: -1], measured[: trials - 1 : -1], strict=True))
        if not self._has_line(plan):
            line.move_back()
            self._objective.end_probes()
            self._error = None  # what a batch that is lost has raised is no news
            return self._unsearched(plan)
        search = self._options.rule(
            lambda step: known[step] if step in known else float(self._phi(line, step)),
            self._start(plan, loss),
        )
        search, unused = checked(search, self._options.memory), trials - len(known)
        if unused != search.unused:
            search = replace(search, unused=unused)
        return self._landed(search, plan, line)
