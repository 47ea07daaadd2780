"""The moves of a search that a device makes ahead of the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from cgq.engine.direction import Plan
from cgq.rules.parabola import two_point
from cgq.rules.quadratic_search import BACKTRACK
from cgq.rules.scalars import Number, choose, is_finite, is_zero, least, stacked
from cgq.vectors import one_pass
from cgq.vectors.device_line import DeviceLine
from cgq.vectors.formula import formula
from cgq.vectors.workspace import Workspace

Applied = Callable[[Number, Plan, Number], tuple[Number, Number]]


class Ahead:
    """Goes from trial to trial, each as the losses say that were measured before it.

    Args:
        plan: what the search starts from, in tensors.
        line: with memory that stays if the plan was recorded; it stands at the first trial then.
        is_recorded: whether these moves can be too.
    """

    def __init__(
        self, workspace: Workspace, plan: Plan, line: DeviceLine, *, is_recorded: bool
    ) -> None:
        self._workspace, self._plan, self._line = workspace, plan, line
        self._is_recorded = is_recorded
        self._steps: list[Tensor] = [plan.trial]
        self._losses: list[Tensor] = []  # of all trials but the last
        if is_recorded:
            line.stands_at(plan.trial)

    def next_trial(self, first: Tensor) -> Tensor:
        """The second trial, after this loss at the first; the line stands there, or will."""
        plan, line, recording = self._plan, self._line, self._workspace.second

        def work(now: Mapping[str, Tensor]) -> dict[str, Number]:
            first = self._taken(now["first"])
            step = _next_trial(self._taken_plan(), first)
            line.move_to(step)
            return {"step": step, "first again": first}

        key = self._workspace.outset.version
        if self._is_recorded and recording.done(key, {"first": first}, work):
            step, first = recording.results.values()
            line.stands_at(step)
        else:
            step, self._is_recorded = _next_trial(plan, first), False
        self._steps.append(step)
        self._losses.append(first)
        return step

    def landed(self, last: Tensor, old: Number, applied: Applied | None) -> list[float]:
        """Go to the last trial, or what is applied of it, by an old average; then wait for all.

        Those are the numbers of the plan, the trials, their losses, and where the line stands.
        """
        plan, line, recording = self._plan, self._line, self._workspace.landing
        steps, losses = self._steps, self._losses

        def landing(plan: Plan, last: Number, old: Number) -> list[Number]:
            at = steps[-1] if applied is None else applied(steps[-1], plan, old)[1]
            line.move_to(at)
            return [*plan[:-1], *steps, *losses, last, at]

        def work(now: Mapping[str, Tensor]) -> dict[str, Number]:
            numbers = landing(self._taken_plan(), now["last"], now.get("old", 0.0))
            return {f"number {index}": number for index, number in enumerate(numbers)}

        key = self._workspace.outset.version, self._workspace.second.version, len(steps)
        averaged = {} if applied is None or is_zero(old) else {"old": old}
        if self._is_recorded and recording.done(key, {"last": last, **averaged}, work):
            return recording.read()
        read: list[float] = stacked(last.device, *landing(plan, last, old)).tolist()
        return read

    def _taken(self, number: Number) -> Number:
        """As a formula, where one kernel can decide."""
        return formula(number) if one_pass.serves(self._workspace.layout) else number

    def _taken_plan(self) -> Plan:
        return Plan(*map(self._taken, self._plan))


def _next_trial(plan: Plan, first: Number) -> Number:
    """Where `quadratic_search` goes after the first trial; the trial again where it would end."""
    q = two_point(plan.loss, plan.slope, [plan.trial], [first])
    minimum = least(q.minimiser, plan.ceiling)
    back = BACKTRACK * plan.trial
    ahead = choose(q.a > 0, choose(q.minimiser > 0, minimum, back), plan.trial)
    ahead = choose(q.is_level(plan.trial, plan.noise), plan.trial, ahead)
    return choose(is_finite(first) & is_finite(q.a) & is_finite(plan.slope), ahead, back)
