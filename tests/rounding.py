"""How far may rounding alone carry two runs apart? Measured, for the problem at hand.

After k steps a run is off by the sum of J_k···J_{j+1} e_j, over the errors e_j it has made and the
Jacobians J of the steps that followed. The e_j differ from one processor to the next; the Jacobians
belong to the problem: with a momentum of 0.9 they may stretch an error 10⁴ times. A shadow is a run
that errs by ±ε on purpose, in every step, in θ and in each loss, and so measures their product.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

EPS = torch.finfo(torch.float64).eps
SHADOWS = 3
ROUNDINGS = 16
"""Two runs may round as many times as much: each for itself, within a pass, in sums and fits."""
BLIND = 1e-8
"""Were rounding to grow as far, it could hide a mistake."""


class Rounding:
    """What shadows have shown; `off` is how they err."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.spread: dict[str, float] = {}

    def off(self, x: Tensor, ulps: float = 1.0) -> Tensor:
        errors = [self.random.choice((-EPS, EPS)) * ulps for _ in range(x.numel())]
        return x * (1.0 + torch.tensor(errors, dtype=torch.float64).view(x.shape))

    def check(self, name: str, found: Any, expected: Any, shadows: list[Any]) -> None:
        """Two runs are as near as shadows were to the second, in this step or an earlier one."""
        mine, other, *blurred = (
            torch.as_tensor(value, dtype=torch.float64).detach()
            for value in (found, expected, *shadows)
        )
        here = max(float((shadow - other).abs().max()) for shadow in blurred)
        spread = self.spread[name] = max(here, self.spread.get(name, 0.0))
        assert spread < BLIND, f"{name} cannot be compared: {spread}"
        gap, ulp = float((mine - other).abs().max()), EPS * float(other.abs().max())
        assert gap <= ROUNDINGS * (spread + ulp), f"{name}: {gap}, by rounding {spread}"
