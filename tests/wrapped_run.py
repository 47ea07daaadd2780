"""A small training run under LineSearch, whose closure can be made to misbehave."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from cgq import CGQ, LineSearch

Mischief = dict[int, Callable[[Tensor], Any]]


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.01)


class Run:
    """Dropout, BatchNorm, draws from every generator, double precision."""

    def __init__(self, make: Callable[[Any], Any] = adamw, **options: Any) -> None:
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)
        ).double()
        self.inputs, self.targets = torch.randn(16, 4).double(), torch.randn(16, 1).double()
        self.base = make(self.model.parameters())
        self.optimizer = LineSearch(self.base, **options)
        self.calls = 0
        self.mischief: Mischief = {}

    def closure(self) -> Any:
        noise = 1 + 0.1 * random.random() + 0.1 * numpy.random.rand()
        loss = nn.functional.mse_loss(noise * self.model(self.inputs), self.targets)
        act = self.mischief.get(self.calls)
        self.calls += 1
        return loss if act is None else act(loss)

    def step(self, mischief: Mischief | None = None) -> Any:
        self.calls, self.mischief = 0, mischief or {}
        return self.optimizer.step(self.closure)

    @property
    def group(self) -> dict[str, Any]:
        return self.optimizer.param_groups[0]

    def vector(self) -> Tensor:
        return torch.cat([param.detach().flatten() for param in self.model.parameters()])

    def snapshot(self, *, with_skipped: bool = True) -> Any:
        """All that a step may change."""
        state = copy.deepcopy(self.optimizer.state_dict())
        if not with_skipped:
            for group in state["param_groups"]:
                del group["skipped"]
        generators = random.getstate(), str(numpy.random.get_state()), torch.get_rng_state()
        return copy.deepcopy(self.model.state_dict()), state, generators


def is_well(optimizer: CGQ | LineSearch) -> None:
    """As after many quiet steps: from now on the coin decides."""
    for group in optimizer.param_groups if "alert" in optimizer.param_groups[0] else ():
        group.update(searches=1000, recent_share=1.0, usual_share=1.0, alert=False)
