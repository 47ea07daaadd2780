"""The moves of a search that a device makes ahead of the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from cgq.engine.direction import Plan
from cgq.rules.parabola import two_point
from cgq.rules.quadratic_search import BACKTRACK
from cgq.rules.scalars import Number, choose, is_finite, is_zero, least, stacked
from cgq.vectors.device_line import DeviceLine
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
        self.steps: list[Tensor] = [plan.trial]
        """Where was, or will be, measured."""
        if is_recorded:
            line.stands_at(plan.trial)

    def next_trial(self, first: Tensor) -> Tensor:
        """The second trial, after this loss at the first; the line stands there, or will."""
        plan, line, recording = self._plan, self._line, self._workspace.second

        def work(now: Mapping[str, Tensor]) -> dict[str, Number]:
            step = _next_trial(plan, now["first"])
            line.move_to(step)
            return {"step": step}

        key = self._workspace.outset.version
        if self._is_recorded and recording.done(key, {"first": first}, work):
            step = recording.results["step"]
            line.stands_at(step)
        else:
            step, self._is_recorded = _next_trial(plan, first), False
        self.steps.append(step)
        return step

    def landed(self, losses: list[Tensor], old: Number, applied: Applied | None) -> list[float]:
        """Go to the last trial, or what is applied of it; then the host waits for all numbers."""
        plan, line, steps, recording = self._plan, self._line, self.steps, self._workspace.landing

        def landing(losses: Sequence[Number], old: Number) -> list[Number]:
            at = steps[-1] if applied is None else applied(steps[-1], plan, old)[1]
            line.move_to(at)
            return [*plan[:-1], *steps, *losses, at]

        def work(now: Mapping[str, Tensor]) -> dict[str, Number]:
            seen = [now[f"loss {index}"] for index in range(len(losses))]
            numbers = landing(seen, now.get("average", 0.0))
            return {f"number {index}": number for index, number in enumerate(numbers)}

        version = self._workspace.outset.version, self._workspace.second.version
        numbers: dict[str, Number] = {f"loss {index}": loss for index, loss in enumerate(losses)}
        if applied is not None and not is_zero(old):
            numbers["average"] = old
        if self._is_recorded and recording.done(version, numbers, work):
            return recording.read()
        read: list[float] = stacked(plan.loss.device, *landing(losses, old)).tolist()
        return read


def _next_trial(plan: Plan, first: Number) -> Number:
    """Where `quadratic_search` goes after the first trial; the trial again where it would end."""
    q = two_point(plan.loss, plan.slope, [plan.trial], [first])
    minimum = least(q.minimiser, plan.ceiling)
    back = BACKTRACK * plan.trial
    ahead = choose(q.a > 0, choose(q.minimiser > 0, minimum, back), plan.trial)
    ahead = choose(q.is_level(plan.trial, plan.noise), plan.trial, ahead)
    return choose(is_finite(first) & is_finite(q.a) & is_finite(plan.slope), ahead, back)
