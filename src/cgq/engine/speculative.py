"""A search begun on the device: measured ahead of the host, which then looks only once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from cgq.engine.direction import Plan
from cgq.rules.parabola import two_point
from cgq.rules.quadratic_search import BACKTRACK
from cgq.rules.scalars import Number, as_tensor, choose, is_finite, least, stacked


class Measured(NamedTuple):
    """A plan the host can read, the losses measured so far, and where the parameters stand."""

    plan: Plan
    losses: dict[float, float]
    landed: float
    unused: int


def measured_ahead(
    plan: Plan,
    phi: Callable[[Number], Number],
    land: Callable[[Number], Number],
    device: torch.device,
    *,
    twice: bool,
) -> Measured:
    """Measure the first trial and, if `twice`, where the search will go next; land; then look.

    The host would have to wait for each loss before it could say where the next is measured. So
    the first fit, `two_point`, is made where the losses are, and all is read at once. The search
    stays with `quadratic_search`, which finds in `losses` what it asks for, or measures further.
    Where the search ends with the first trial, the second measurement is unused, and both are where
    the host then sees that there was nothing to search. `land` moves the parameters to where a
    search that chooses the last trial would take them, and returns the α applied.
    """
    # All of them tensors: of a float and a tensor torch makes another quotient than the host.
    plan = Plan(*(as_tensor(number, device) for number in plan))
    steps = [plan.trial]
    losses = [as_tensor(phi(plan.trial), device)]
    if twice:
        steps.append(_next_trial(plan, losses[0]))
        losses.append(as_tensor(phi(steps[1]), device))
    landed = land(steps[-1])
    *numbers, landed = stacked(device, *plan, *steps, *losses, landed).tolist()
    plan = Plan(*numbers[: len(plan)])
    steps, losses = numbers[len(plan) : -len(losses)], numbers[-len(losses) :]
    known = dict(zip(steps[::-1], losses[::-1], strict=True))  # at one point, the first counts
    return Measured(plan, known, landed, len(steps) - len(known))


def _next_trial(plan: Plan, first: Number) -> Number:
    """Where `quadratic_search` goes after the first trial; the trial again where it would end."""
    q = two_point(plan.loss, plan.slope, [plan.trial], [first])
    minimum = least(q.minimiser, plan.ceiling)
    back = BACKTRACK * plan.trial
    ahead = choose(q.a > 0, choose(q.minimiser > 0, minimum, back), plan.trial)
    ahead = choose(q.is_level(plan.trial, plan.noise), plan.trial, ahead)
    return choose(is_finite(first) & is_finite(q.a) & is_finite(plan.slope), ahead, back)
