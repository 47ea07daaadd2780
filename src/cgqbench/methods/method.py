"""A method: an optimizer, its settings for each network, and its schedule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from cgqbench.methods.optimizers import Factory
from cgqbench.methods.schedules import Budget, Schedule

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """How an optimizer is made: settings for every network, and what a family changes."""

    label: str
    make: Factory
    settings: Settings = field(default_factory=dict)
    families: Settings = field(default_factory=dict)
    schedule: Schedule | None = None
    library: str | None = None
    """The module it comes from, where that is neither torch nor ours."""

    def settings_for(self, network: str) -> dict[str, Any]:
        """The settings for a network: its own before its family's, its name up to the number."""
        family = re.split(r"\d", network)[0]
        return {**self.settings, **self.families.get(family, {}), **self.families.get(network, {})}

    def optimizer(self, model: nn.Module, budget: Budget, seed: int) -> Optimizer:
        """The optimizer for `model`; `seed` is for what a method draws itself."""
        return self.make(model, budget, seed, **self.settings)

    def scheduler(self, optimizer: Optimizer, budget: Budget) -> LRScheduler | None:
        """The schedule, stepped once a batch, of a method that has one."""
        return self.schedule(optimizer, budget) if self.schedule else None
