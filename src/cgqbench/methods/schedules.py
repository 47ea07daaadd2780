"""How long a run is, and the schedules that must know it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler


class Budget(NamedTuple):
    """How long a run is. Only scheduled methods and Armijo's growth may look at it."""

    epochs: int
    batches: int
    """Batches an epoch."""

    @property
    def steps(self) -> int:
        """All steps of the run."""
        return self.epochs * self.batches


Schedule = Callable[[Optimizer, Budget], LRScheduler]


def cosine(optimizer: Optimizer, budget: Budget) -> LRScheduler:
    """From the full rate to zero along a cosine."""
    return CosineAnnealingLR(optimizer, budget.steps)


def warm_cosine(optimizer: Optimizer, budget: Budget) -> LRScheduler:
    """A linear warm-up over a twentieth of the run, then a cosine to zero."""
    warm = max(1, budget.steps // 20)

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, budget.steps - warm)))

    return LambdaLR(optimizer, factor)
