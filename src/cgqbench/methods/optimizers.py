"""How the optimizers of torch and of this project are made: one function each.

The keyword arguments of a function are the settings a user may give after the method's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cgq import (
    CGQ,
    LineSearch,
    QuadraticSearch,
    dai_yuan,
    fletcher_reeves,
    hestenes_stiefel,
    least_squares,
    polak_ribiere,
    two_point,
)
from cgqbench.methods.baselines import COCOB, PAL, Armijo, GeN
from cgqbench.methods.schedules import Budget

Factory = Callable[..., Optimizer]

RULES: dict[str, Callable[..., Any]] = {
    rule.__name__: rule for rule in (polak_ribiere, fletcher_reeves, hestenes_stiefel, dai_yuan)
}
FITS: dict[str, Callable[..., Any]] = {fit.__name__: fit for fit in (two_point, least_squares)}


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are to be trained: none that is frozen.

    >>> layer = nn.Linear(2, 3)
    >>> _ = layer.bias.requires_grad_(False)
    >>> [tuple(param.shape) for param in trained(layer)]
    [(3, 2)]
    """
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def cgq(
    model: nn.Module,
    budget: Budget,
    seed: int,
    *,
    lr: float | None,
    max_relative_step: float | None = None,
    momentum: float | str = "polak_ribiere",
    max_momentum: float = 0.8,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    fit: str = "two_point",
    max_fits: int = 3,
    probe: float | None = None,
    search_prob: float = 1.0,
    smoothing: float = 0.0,
    watched: bool = False,
    takes_descent: bool = False,
) -> Optimizer:
    """CGQ and sCGQ; the momentum rule and the fit by name, `lr` None for no ceiling.

    The paper's sCGQ is not watched: a high loss does not make it search. `takes_descent`: a trial
    at the relative ceiling is taken if it lowers the loss, as LineSearch does.
    """
    return CGQ(
        [{"params": trained(model), "watched": watched, "descent_suffices": takes_descent}],
        lr=math.inf if lr is None else lr,
        max_relative_step=max_relative_step,
        momentum=_named(momentum, RULES, "momentum") if isinstance(momentum, str) else momentum,
        max_momentum=max_momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
        decoupled_weight_decay=decoupled_weight_decay,
        fit=_named(fit, FITS, "fit"),
        max_fits=max_fits,
        probe=probe,
        search_prob=search_prob,
        smoothing=smoothing,
        model=model,
        seed=seed,
    )


def sgd(
    model: nn.Module,
    budget: Budget,
    seed: int,
    *,
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
) -> Optimizer:
    """SGD with Nesterov's momentum."""
    return torch.optim.SGD(
        trained(model), lr, momentum=momentum, weight_decay=weight_decay, nesterov=momentum > 0
    )


def _of_torch(kind: Callable[..., Optimizer], decay: float) -> Factory:
    """An optimizer of torch that is given a rate and a decay."""

    def make(
        model: nn.Module, budget: Budget, seed: int, *, lr: float, weight_decay: float = decay
    ) -> Optimizer:
        return kind(trained(model), lr, weight_decay=weight_decay)

    return make


adam = _of_torch(torch.optim.Adam, 0.0)
adamw = _of_torch(torch.optim.AdamW, 0.01)
adagrad = _of_torch(torch.optim.Adagrad, 0.0)


def muon(
    model: nn.Module, budget: Budget, seed: int, *, lr: float, weight_decay: float = 0.01
) -> Optimizer:
    """Muon for the hidden matrices, AdamW for the rest."""
    from cgqbench.methods.muon import MuonAdamW  # torch has had it since 2.9

    return MuonAdamW(model, lr, weight_decay)


def recordable_adamw(
    model: nn.Module, budget: Budget, seed: int, *, lr: float, weight_decay: float = 0.01
) -> Optimizer:
    """AdamW, on a GPU in the form that LineSearch can record with its own kernels."""
    params = trained(model)
    form: dict[str, Any] = {"fused": True, "capturable": True} if params[0].is_cuda else {}
    return torch.optim.AdamW(params, lr, weight_decay=weight_decay, **form)


BASES: dict[str, Factory] = {
    "sgd": sgd,
    "adamw": recordable_adamw,
    "adagrad": adagrad,
    "muon": muon,
}


def search(
    model: nn.Module,
    budget: Budget,
    seed: int,
    *,
    base: str = "adamw",
    lr: float = 1e-3,
    weight_decay: float | None = None,
    max_relative_step: float = 0.005,
    search_prob: float = 0.1,
    max_fits: int = 3,
    smoothing: float = 0.5,
    full_steps: float = 1000,
    greedy: bool = False,
) -> Optimizer:
    """LineSearch around a base that is given by name; `lr` is the base's, and should not matter.

    So is the decay; None: the base's usual one, for what is little to AdamW is much to SGD. A
    `greedy` search goes to the minimum of its parabola even where the ceiling descends.
    """
    decay = {} if weight_decay is None else {"weight_decay": weight_decay}
    return LineSearch(
        _named(base, BASES, "base")(model, budget, seed, lr=lr, **decay),
        max_relative_step=max_relative_step,
        search_prob=search_prob,
        max_fits=max_fits,
        smoothing=smoothing,
        full_steps=full_steps,
        model=model,
        seed=seed,
        search=QuadraticSearch(max_fits=max_fits) if greedy else None,
    )


def cocob(
    model: nn.Module, budget: Budget, seed: int, *, alpha: float = 100.0, weight_decay: float = 0.0
) -> Optimizer:
    """COCOB, which bets on coins."""
    return COCOB(trained(model), alpha=alpha, weight_decay=weight_decay)


def armijo(
    model: nn.Module,
    budget: Budget,
    seed: int,
    *,
    lr: float = 0.5,
    c: float = 0.1,
    backtrack: float = 0.9,
) -> Optimizer:
    """SGD with an Armijo line search; the first trial doubles over an epoch."""
    growth = 2.0 ** (1.0 / budget.batches)
    return Armijo(trained(model), lr=lr, c=c, backtrack=backtrack, growth=growth, model=model)


def pal(
    model: nn.Module,
    budget: Budget,
    seed: int,
    *,
    measuring_step: float = 0.5,
    max_step: float = 3.16,
    direction_factor: float = 0.4,
    step_factor: float = 1 / 0.6,
) -> Optimizer:
    """PAL, the parabolic approximation line search."""
    return PAL(
        trained(model),
        measuring_step=measuring_step,
        max_step=max_step,
        direction_factor=direction_factor,
        step_factor=step_factor,
        model=model,
    )


def gen(
    model: nn.Module, budget: Budget, seed: int, *, lr: float = 1e-4, weight_decay: float = 0.01
) -> Optimizer:
    """GeN around AdamW; `lr` is only where the rate begins."""
    return GeN(adamw(model, budget, seed, lr=lr, weight_decay=weight_decay), model=model)


def _named(name: str, known: dict[str, Callable[..., Any]], setting: str) -> Any:
    if name not in known:
        raise ValueError(f"There is no {setting} {name!r}. Choose from: {', '.join(known)}.")
    return known[name]
