"""A search begun on the device: measured ahead of the host, which then looks only once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from cgq.parabola import Fit, least_squares, two_point
from cgq.scalars import Number, as_tensor, choose, is_finite, least, stacked
from cgq.search import BACKTRACK

# The fits that make of one trial what `two_point` makes of it.
TWO_POINT_FIRST: tuple[Fit, ...] = (two_point, least_squares)


class Plan(NamedTuple):
    """What a search starts from. Floats on the host, 0-dim tensors on a device."""

    phi_0: Number
    size: Number  # |g| or |g|²: what counts is whether it is finite
    slope: Number
    ceiling: Number
    trial: Number
    beta: Number
    reach: Number
    noise: Number


class Foreseen(NamedTuple):
    """A plan the host can read, the losses measured so far, and where the parameters stand."""

    plan: Plan
    losses: dict[float, float]
    landed: float
    in_vain: int


def foreseen(
    plan: Plan,
    phi: Callable[[Number], Number],
    land: Callable[[Number], Number],
    device: torch.device,
    *,
    twice: bool,
) -> Foreseen:
    """Measure the first trial and, if `twice`, where the search will go next; land; then look.

    The host would have to wait for each loss before it could say where the next is measured. So
    the first fit, `two_point`, is made where the losses are, and all is read at once. The search
    stays with `quadratic_search`, which finds in `losses` what it asks for, or measures further.
    Where the search ends with the first trial, the second measurement was in vain, and both where
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
    return Foreseen(plan, known, landed, len(steps) - len(known))


def _next_trial(plan: Plan, first: Number) -> Number:
    """Where `quadratic_search` goes after the first trial; the trial again where it would end."""
    q = two_point(plan.phi_0, plan.slope, [plan.trial], [first])
    minimum = least(q.minimiser, plan.ceiling)
    back = BACKTRACK * plan.trial
    ahead = choose(q.a > 0, choose(q.minimiser > 0, minimum, back), plan.trial)
    ahead = choose(q.is_level(plan.trial, plan.noise), plan.trial, ahead)
    return choose(is_finite(first) & is_finite(q.a) & is_finite(plan.slope), ahead, back)
