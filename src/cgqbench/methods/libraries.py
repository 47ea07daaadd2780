"""How the optimizers of other libraries are made: one function each, imported where it is used.

The keyword arguments of a function are the settings a user may give after the method's name.
"""

from __future__ import annotations

from importlib import import_module

from torch import nn
from torch.optim import AdamW, Optimizer

from cgqbench.methods.mechanic import Mechanic
from cgqbench.methods.optimizers import Factory, sgd, trained
from cgqbench.methods.schedules import Budget


def lookahead(
    model: nn.Module,
    budget: Budget,
    seed: int,
    *,
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    k: int = 5,
    alpha: float = 0.5,
) -> Optimizer:
    """Lookahead over SGD."""
    from pytorch_optimizer import Lookahead

    fast = sgd(model, budget, seed, lr=lr, momentum=momentum, weight_decay=weight_decay)
    return Lookahead(fast, k=k, alpha=alpha)


def schedulefree_sgd(
    model: nn.Module,
    budget: Budget,
    seed: int,
    *,
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    warmup_steps: int = 0,
) -> Optimizer:
    """Schedule-Free SGD."""
    from schedulefree import SGDScheduleFree

    optimizer = SGDScheduleFree(
        trained(model), lr, momentum, weight_decay=weight_decay, warmup_steps=warmup_steps
    )
    optimizer.train()  # it starts in the other mode
    return optimizer


def schedulefree_adamw(
    model: nn.Module,
    budget: Budget,
    seed: int,
    *,
    lr: float,
    weight_decay: float = 0.0,
    warmup_steps: int = 0,
) -> Optimizer:
    """Schedule-Free AdamW."""
    from schedulefree import AdamWScheduleFree

    optimizer = AdamWScheduleFree(
        trained(model), lr, weight_decay=weight_decay, warmup_steps=warmup_steps
    )
    optimizer.train()  # it starts in the other mode
    return optimizer


def mechanic(
    model: nn.Module, budget: Budget, seed: int, *, lr: float = 1.0, weight_decay: float = 0.01
) -> Optimizer:
    """Mechanic around AdamW; `lr` is AdamW's, and should not matter."""
    from mechanic_pytorch import mechanize

    return Mechanic(mechanize(AdamW)(trained(model), lr=lr, weight_decay=weight_decay))


def _tuning_free(library: str, name: str) -> Factory:
    """An optimizer that finds its rate, on which `lr` is a factor."""

    def make(
        model: nn.Module, budget: Budget, seed: int, *, lr: float = 1.0, weight_decay: float = 0.0
    ) -> Optimizer:
        kind = getattr(import_module(library), name)
        return kind(trained(model), lr=lr, weight_decay=weight_decay)

    return make


prodigy = _tuning_free("prodigyopt", "Prodigy")
dadaptation = _tuning_free("dadaptation", "DAdaptAdam")
dog = _tuning_free("dog", "DoG")
