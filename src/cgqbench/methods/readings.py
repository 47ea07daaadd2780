"""What an optimizer says about itself after a step, whatever its library calls it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from cgqbench.methods.mechanic import TUNER

Number = float | Tensor


def step_size(optimizer: Optimizer) -> Number | None:
    """The rate applied in the last step, or None where there is no such number."""
    group = optimizer.param_groups[0]
    if "step_size" in group:  # found by a search
        return _number(group["step_size"])
    if "eta" in group:  # DoG: one for each tensor, all alike
        return _number(group["eta"][0])
    if "d" in group:  # Prodigy and D-Adaptation: the rate is a factor on the estimate
        return _number(group["d"] * group["lr"])
    state: Any = optimizer.state
    if TUNER in state:  # Mechanic: likewise, on the sum of its estimates
        return _number(state[TUNER]["s"].sum() * group["lr"])
    return _number(group.get("scheduled_lr", group.get("lr")))


def momentum(optimizer: Optimizer) -> Number | None:
    """The momentum applied in the last step: CGQ's β, else the setting of that name."""
    group = optimizer.param_groups[0]
    if "beta" in group:
        return _number(group["beta"])
    betas = group.get("betas")
    return _number(betas[0] if betas else group.get("momentum"))


def _number(value: Any) -> Number | None:
    return value if isinstance(value, (int, float, Tensor)) else None
