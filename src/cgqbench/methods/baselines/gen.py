"""GeN, the generalized Newton's method of Bu and Xu, 2024: any optimizer, a rate by parabola."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cgq import Parabola, Search
from cgq.evaluation import Closure, Environment, Objective, StaleGradients, objective_of
from cgqbench.methods.around import Around
from cgqbench.methods.baselines.settings import require

# As in the authors' program: one flat parabola may not ask for a rate a thousand times as large.
BOUND = 2.0
START = "start"  # of the update to be measured, in the state of each parameter


class GeN(Around):
    r"""The rate of another optimizer is drawn to the minimum of a parabola along its update.

    .. math::
        θ_{t+1} = θ_t - η d_t, \quad L(x) = f_{t+1}(θ_t - x d_t), \quad
        η^* = \frac{η}{2} \cdot \frac{L(-η) - L(η)}{L(-η) - 2 L(0) + L(η)}, \quad
        η ← γ η + (1 - γ) η^*

    Every Φ-th update is measured on the batch after it, as in the authors' program: there L(η) is
    the loss anyway, and two passes more give L(0) and L(-η). A parabola that is not open upwards,
    or whose minimum lies behind, changes nothing; η* counts as at most 2η and at least η/2.

    Args:
        base: the optimizer that gives the direction d and has the rate, `lr`.
        every: Φ.
        smoothing: γ.
        model: the module whose buffers a probe must not change; None: those the closure calls.

    >>> theta = nn.Parameter(torch.tensor([3.0]))
    >>> optimizer = GeN(torch.optim.SGD([theta], lr=0.1), every=1, smoothing=0.0)
    >>> for _ in range(4):
    ...     loss = optimizer.step(lambda: theta.square().sum())
    ...     print(round(optimizer.param_groups[0]["lr"], 4), f"{abs(theta.item()):.3f}")
    0.1 2.400
    0.2 1.440
    0.4 0.288
    0.5 0.000
    """

    last_search: Search | None = None
    """What the last step saw along the update before it, in multiples of that; None: nothing."""

    def __init__(
        self,
        base: Optimizer,
        *,
        every: int = 8,
        smoothing: float = 0.9,
        model: nn.Module | None = None,
    ) -> None:
        whole = isinstance(every, int) and every >= 1
        require(whole, "every", every, "Use a whole number of 1 or more.")
        require(0.0 <= smoothing < 1.0, "smoothing", smoothing, "Use 0 (none) or a share below 1.")
        super().__init__(base)
        self.every, self.smoothing = every, smoothing
        self._environment = Environment(model)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Measure the last update if that is due, then let the base take a step."""
        self.last_search = loss = None
        params = [param for group in self.param_groups for param in group["params"]]
        if closure is not None:
            objective = objective_of(closure, params, self._environment)
            try:
                loss = objective.first_pass(StaleGradients([]))
                self._measure(objective, loss)
            finally:
                self._environment.forget()
        first = self.param_groups[0]
        first["steps"] = first.get("steps", 0) + 1
        due = first["steps"] % self.every == 0
        moving = [param for param in params if param.grad is not None] if due else []
        starts = [param.clone() for param in moving]
        self.base.step()
        for param, start in zip(moving, starts, strict=True):
            self.state[param][START] = start
        return loss

    def _measure(self, objective: Objective, loss: Tensor | float | None) -> None:
        """Fit the parabola if an update waits for it, and change the rate."""
        kept = [param for param in self.state if START in self.state[param]]
        starts = [self.state[param].pop(START) for param in kept]
        if not kept or loss is None:
            return
        ends = [param.clone() for param in kept]
        behind = torch._foreach_sub(torch._foreach_mul(starts, 2.0), ends)
        with _probes(objective, kept, ends):
            losses = [float(loss)]
            for place in (starts, behind):
                torch._foreach_copy_(kept, place)
                losses.append(float(objective.probe(kept[0].device)))
        self._follow(*losses)

    def _follow(self, after: float, before: float, behind: float) -> None:
        """Draw the rate to the minimum of the parabola through L(η), L(0) and L(-η)."""
        # In multiples of η, which are the same for every group.
        q = Parabola((after + behind) / 2.0 - before, (after - behind) / 2.0, before)
        accepted = q.is_finite and q.a > 0.0 and q.b < 0.0
        wanted = q.minimiser if accepted else 1.0
        ratio = min(max(wanted, 1.0 / BOUND), BOUND)
        for group in self.param_groups:
            group["lr"] *= self.smoothing + (1.0 - self.smoothing) * ratio
        self.last_search = Search(
            loss=before,
            slope=q.b,
            curvature=q.curvature,
            trial_steps=(1.0, -1.0),
            trial_losses=(after, behind),
            step_size=ratio,
            accepted=accepted,
            capped=ratio != wanted,
        )


@contextmanager
def _probes(objective: Objective, params: list[Tensor], here: list[Tensor]) -> Iterator[None]:
    """Where the loss is measured elsewhere; all is then as it was, `params` are `here`."""
    objective.prepare_probes()
    try:
        yield
    finally:
        torch._foreach_copy_(params, here)
        objective.end_probes()
