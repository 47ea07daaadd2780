"""How the optimizers of other libraries are made: one function each, imported where it is used.

The keyword arguments of a function are the settings a user may give after the method's name.
"""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from cgqbench.methods.optimizers import sgd
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


def cocob(
    model: nn.Module,
    budget: Budget,
    seed: int,
    *,
    alpha: float = 100.0,
    weight_decay: float = 0.0,
) -> Optimizer:
    """COCOB, which bets on coins."""
    from parameterfree import COCOB

    return COCOB(model.parameters(), alpha=alpha, weight_decay=weight_decay)


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
        model.parameters(), lr, momentum, weight_decay=weight_decay, warmup_steps=warmup_steps
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
        model.parameters(), lr, weight_decay=weight_decay, warmup_steps=warmup_steps
    )
    optimizer.train()  # it starts in the other mode
    return optimizer


def prodigy(
    model: nn.Module, budget: Budget, seed: int, *, lr: float = 1.0, weight_decay: float = 0.0
) -> Optimizer:
    """Prodigy."""
    from prodigyopt import Prodigy

    return Prodigy(model.parameters(), lr, weight_decay=weight_decay)


def dadaptation(
    model: nn.Module, budget: Budget, seed: int, *, lr: float = 1.0, weight_decay: float = 0.0
) -> Optimizer:
    """Adam with D-Adaptation."""
    from dadaptation import DAdaptAdam

    return DAdaptAdam(model.parameters(), lr, weight_decay=weight_decay)


def dog(
    model: nn.Module, budget: Budget, seed: int, *, lr: float = 1.0, weight_decay: float = 0.0
) -> Optimizer:
    """DoG, distance over gradients. Its authors evaluate an average of the weights."""
    from dog import DoG

    return DoG(model.parameters(), lr=lr, weight_decay=weight_decay)
