"""PAL: the parabolic approximation line search of Mutschler and Zell, 2020."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from cgq import ConjugateDescent, Parabola, Search, Start, two_point
from cgqbench.methods.baselines.settings import require


class PAL(ConjugateDescent):
    r"""A step to the minimum of a parabola through one probe, taken along a unit direction.

    .. math::
        d_t = -g_t + β d_{t-1}, \quad
        φ(s) = f(θ_t + s\, d_t/|d_t|), \quad
        A = \frac{φ(μ) - φ(0) - φ'(0)μ}{μ^2}

    .. math::
        θ_{t+1} = θ_t + s\, d_t/|d_t|, \quad s = \min(s', s_{max}), \quad s' =
        \begin{cases} -ν φ'(0)/2A & φ'(0) < 0, A > 0 \\
                      μ & φ'(0) < 0, A ≤ 0 \\ 0 & φ'(0) ≥ 0 \end{cases}

    `group["step_size"]` and the steps in `last_search` are α = s/|d|, the learning rate that a
    length s amounts to.

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
    (1.0, (0.125,))
    """

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
        cure = "Use 0 (none) or a share below 1."
        require(0.0 <= direction_factor < 1.0, "direction_factor", direction_factor, cure)
        search = ParabolicSearch(measuring_step, max_step, step_factor)
        super().__init__(params, math.inf, momentum=direction_factor, model=model, search=search)


@dataclass(frozen=True)
class ParabolicSearch:
    """Measures φ at one length and chooses the step; 0.0 where φ does not fall or is not finite.

    >>> search = ParabolicSearch(measuring_step=0.5, max_step=3.16, step_factor=1.0)
    >>> start = Start(5.0, -4.0, trial=0.1, ceiling=math.inf, squared_length=1.0)
    >>> found = search(lambda x: (x - 2) ** 2 + 1, start)
    >>> found.step_size, found.trial_losses, found.accepted, found.capped
    (2.0, (3.25,), True, False)
    """

    measuring_step: float
    max_step: float
    step_factor: float

    needs_length: ClassVar[bool] = True
    any_slope: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(0.0 < value < math.inf, name, value, "Use a positive number.")

    def __call__(self, phi: Callable[[float], float], start: Start) -> Search:
        steps: tuple[float, ...] = ()
        losses: tuple[float, ...] = ()
        # Where φ does not fall the probe could change nothing and is left out.
        # A d so short that 1/|d| leaves the range of numbers is as good as none.
        largest = max(torch.finfo(dtype).max for dtype in (torch.float32, start.dtype))
        falls = start.slope < 0.0 and start.squared_length * largest > 1.0
        unit = start.squared_length**-0.5 if falls else 1.0  # the α of a length of 1
        slope, chosen = start.slope * unit, 0.0
        q = Parabola(math.nan, slope, start.loss)
        if falls:
            steps, losses = (self.measuring_step,), (phi(self.measuring_step * unit),)
            q = two_point(start.loss, slope, steps, losses)
            if q.is_finite:
                wanted = self.step_factor * q.minimiser if q.a > 0.0 else self.measuring_step
                chosen = min(wanted, self.max_step)
        return Search(
            loss=start.loss,
            slope=start.slope,
            curvature=q.curvature / unit**2,
            trial_steps=tuple(step * unit for step in steps),
            trial_losses=losses,
            step_size=chosen * unit,
            accepted=chosen > 0.0,
            capped=chosen >= self.max_step,
        )
