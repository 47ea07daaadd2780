"""SGD with the stochastic Armijo line search (SLS) of Vaswani et al., "Painless SGD", 2019."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cgq import ConjugateDescent, Search, Start
from cgqbench.methods.baselines.settings import require

# The paper does not say what happens after too many backtracks; its authors' program moves by this.
FALLBACK = 1e-6


class Armijo(ConjugateDescent):
    r"""Gradient descent by the longest step of a shrinking sequence that lowers the loss enough.

    .. math::
        θ_{t+1} = θ_t - α_t g_t, \quad
        α_t = \max \{s_t b^k : φ(s_t b^k) ≤ φ(0) - c\, s_t b^k\, |g_t|^2\}, \quad
        s_{t+1} = \min(α_t γ, α_{max})

    Args:
        params: parameters or parameter groups.
        lr: the first trial of the first step, s_1.
        growth: γ, from a step to the next one's first trial; the paper's is 2^(1/batches an epoch).
        c: the share of the decrease promised by the slope that must be kept.
        backtrack: b, the factor from one trial to the next.
        max_backtracks: the largest k. If even that is rejected, the step is 1e-6, as in the
            authors' program, and the next step starts from the last trial (or 1e-6).
        max_step: α_max, the bound of every trial.
        model: the module whose buffers a probe must not change; None: those the closure calls.

    `group["next_trial"]` is s of the next step.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> inputs, targets = torch.randn(8, 3), torch.randn(8, 1)
    >>> optimizer = Armijo(model.parameters(), growth=2 ** (1 / 938))
    >>> loss = optimizer.step(lambda: torch.nn.functional.mse_loss(model(inputs), targets))
    >>> optimizer.last_search.accepted
    True
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.5,
        *,
        growth: float,
        c: float = 0.1,
        backtrack: float = 0.9,
        max_backtracks: int = 100,
        max_step: float = 10.0,
        model: nn.Module | None = None,
    ) -> None:
        require(0.0 < lr < math.inf, "lr", lr, "It is the first trial: use a positive number.")
        require(0.0 < max_step < math.inf, "max_step", max_step, "Use a positive number.")
        search = BacktrackingSearch(min(lr, max_step), growth, c, backtrack, max_backtracks)
        super().__init__(params, max_step, momentum=0.0, model=model, search=search)


@dataclass(frozen=True)
class BacktrackingSearch:
    """Armijo's condition, from a first trial that grows with the steps found.

    >>> search = BacktrackingSearch(4.0, growth=2.0, c=0.1, backtrack=0.5, max_backtracks=100)
    >>> start = Start(1.0, -2.0, trial=0.1, ceiling=10.0, memory=search.memory)
    >>> found = search(lambda x: (x - 1) ** 2, start)
    >>> found.step_size, found.trial_losses, found.memory
    (1.0, (9.0, 1.0, 0.0), {'next_trial': 2.0})
    """

    first_trial: float
    growth: float
    c: float
    backtrack: float
    max_backtracks: int

    def __post_init__(self) -> None:
        require(1.0 <= self.growth < math.inf, "growth", self.growth, "Use a factor of 1 or more.")
        require(0.0 < self.c < 1.0, "c", self.c, "Use a share between 0 and 1.")
        factor = "Use a factor between 0 and 1."
        require(0.0 < self.backtrack < 1.0, "backtrack", self.backtrack, factor)
        k = self.max_backtracks
        whole = isinstance(k, int) and k >= 0
        require(whole, "max_backtracks", k, "Use a whole number of 0 or more.")

    @property
    def memory(self) -> dict[str, float]:
        """What the first search finds."""
        return {"next_trial": self.first_trial}

    def __call__(self, phi: Callable[[float], float], start: Start) -> Search:
        """The first α of trial·backtrack^k, k = 0, …, max_backtracks, with φ(α) ≤ φ(0) + c·α·φ'(0).

        The right side is rounded to the loss's own precision, as it is where all of this is
        computed in that precision: no decrease is asked for that the loss could not show. Where no
        trial is finite the step is 0.0.
        """
        trial = start.memory["next_trial"]
        steps: list[float] = []
        losses: list[float] = []
        chosen, accepted = 0.0, False
        for k in range(self.max_backtracks + 1):
            steps.append(trial * self.backtrack**k)
            losses.append(phi(steps[-1]))
            wanted = start.loss + self.c * steps[-1] * start.slope
            bound = torch.tensor(wanted, dtype=start.dtype).item()
            accepted = math.isfinite(losses[-1]) and losses[-1] <= bound
            if accepted:
                chosen = steps[-1]
                break
        else:
            chosen = FALLBACK if any(map(math.isfinite, losses)) else 0.0
        # The fallback's floor keeps a row of failures from shrinking the trial to nothing.
        last = chosen if accepted else max(steps[-1], FALLBACK)
        return Search(
            loss=start.loss,
            slope=start.slope,
            curvature=math.nan,
            trial_steps=tuple(steps),
            trial_losses=tuple(losses),
            step_size=chosen,
            accepted=accepted,
            capped=chosen >= start.ceiling,
            memory={"next_trial": min(last * self.growth, start.ceiling)},
        )
