"""PAL: the parabolic approximation line search of Mutschler and Zell, 2020."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from cgq import Parabola, Search, two_point
from cgqbench.methods.baselines.line_search import Found, LineSearch, Phi, Start, require


class PAL(LineSearch):
    r"""A step to the minimum of a parabola through one probe, taken along a unit direction.

    .. math::
        d_t = -g_t + β d_{t-1}, \quad
        φ(s) = f(θ_t + s\, d_t/|d_t|), \quad
        A = \frac{φ(μ) - φ(0) - φ'(0)μ}{μ^2}

    .. math::
        θ_{t+1} = θ_t + s\, d_t/|d_t|, \quad s = \min(s', s_{max}), \quad s' =
        \begin{cases} -ν φ'(0)/2A & φ'(0) < 0, A > 0 \\
                      μ & φ'(0) < 0, A ≤ 0 \\ 0 & φ'(0) ≥ 0 \end{cases}

    Steps in `last_search` are such lengths s; `group["step_size"]` is s/|d|, the learning rate
    they amount to.

    Args:
        params: parameters or parameter groups.
        measuring_step: μ, how far away the probe is.
        max_step: s_max, the longest step.
        direction_factor: β, the share of the last direction in the new one.
        step_factor: ν, by which the parabola's minimum is overshot.
        model: the module whose buffers a probe must not change; None: those the closure calls.

    >>> import torch
    >>> theta = torch.nn.Parameter(torch.tensor([3.0]))
    >>> optimizer = PAL([theta], step_factor=1.0)
    >>> loss = optimizer.step(lambda: ((theta - 1) ** 2).sum())
    >>> round(theta.item(), 5), optimizer.last_search.trial_steps
    (1.0, (0.5,))
    """

    normalised = True

    def __init__(
        self,
        params: Any,
        measuring_step: float = 0.5,
        *,
        max_step: float = 3.16,
        direction_factor: float = 0.4,
        step_factor: float = 1.0 / 0.6,
        model: nn.Module | None = None,
    ) -> None:
        settings = {
            "measuring_step": measuring_step,
            "max_step": max_step,
            "step_factor": step_factor,
        }
        for name, value in settings.items():
            require(0.0 < value < math.inf, name, value, "Use a positive number.")
        cure = "Use 0 (none) or a share below 1."
        require(0.0 <= direction_factor < 1.0, "direction_factor", direction_factor, cure)
        super().__init__(params, settings, beta=direction_factor, model=model)

    def _search(self, phi: Phi, start: Start) -> Found:
        group = self.param_groups[0]
        search = parabolic_search(
            phi,
            start,
            trial=group["measuring_step"],
            factor=group["step_factor"],
            ceiling=group["max_step"],
        )
        return Found(search, {})


def parabolic_search(
    phi: Phi, start: Start, *, trial: float, factor: float, ceiling: float
) -> Search:
    """Measure φ(trial) and choose the step; it is 0.0 where φ does not fall or is not finite.

    Where φ does not fall at 0 the probe could change nothing and is left out.

    >>> import torch
    >>> start = Start(5.0, -4.0, torch.float64)
    >>> found = parabolic_search(
    ...     lambda x: (x - 2) ** 2 + 1, start, trial=0.5, factor=1.0, ceiling=3.16
    ... )
    >>> found.step_size, found.trial_losses, found.accepted, found.capped
    (2.0, (3.25,), True, False)
    """
    steps: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    q, chosen = Parabola(math.nan, start.slope, start.loss), 0.0
    if start.slope < 0.0:
        steps, losses = (trial,), (phi(trial),)
        q = two_point(start.loss, start.slope, steps, losses)
        if q.is_finite:
            chosen = min(factor * q.minimiser if q.a > 0.0 else trial, ceiling)
    return Search(
        loss=start.loss,
        slope=start.slope,
        curvature=q.curvature,
        trial_steps=steps,
        trial_losses=losses,
        step_size=chosen,
        accepted=chosen > 0.0,
        capped=chosen >= ceiling,
    )
