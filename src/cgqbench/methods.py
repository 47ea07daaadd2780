"""Methods by name: an optimizer with the settings the paper's experiments used for a network.

A method is written `name` or `name:setting=value,...`, for example `scgq:search_prob=0.3`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, get_args, get_type_hints

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from cgqbench import libraries, optimizers, schedules
from cgqbench.optimizers import Factory
from cgqbench.schedules import Budget, Schedule

Settings = Mapping[str, Any]

# As L2 in the direction, not in the searched loss.
DECAY: Settings = {
    "vgg": {"weight_decay": 5e-4},
    "resnet": {"weight_decay": 3e-4},
    "densenet": {"weight_decay": 3e-4},
}


def _decayed(**families: dict[str, Any]) -> Settings:
    """Settings by family of networks, with the paper's weight decay in each."""
    return {family: {**DECAY[family], **families.get(family, {})} for family in DECAY} | {
        family: own for family, own in families.items() if family not in DECAY
    }


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
        return {
            **self.settings,
            **self.families.get(family, {}),
            **self.families.get(network, {}),
        }


_PAPER_SGD = {"lr": 0.1, "momentum": 0.9}
_PAPER_SGD_FAMILIES = _decayed(mlp={"lr": 0.01}, vgg={"lr": 0.02}, gpt={"lr": 0.1})
_COSINE_SGD_FAMILIES = _decayed(mlp={"lr": 0.05}, vgg={"lr": 0.02})
_ADAMW = {"lr": 1e-3, "weight_decay": 0.01}
_SEARCHED_SGD = {"base": "sgd", "lr": 0.1}  # which shows that this rate is of no account
_PAPER_CGQ = {"lr": 0.3, "max_momentum": 0.8, "max_fits": 3, "smoothing": 0.5}
_PAPER_CGQ_FAMILIES = _decayed(
    vgg={"lr": 0.05},
    resnet={"nesterov": True},
    densenet={"lr": 0.1, "nesterov": True},
)


def _cgq(label: str, **settings: Any) -> Method:
    return Method(label, optimizers.cgq, {**_PAPER_CGQ, **settings}, _PAPER_CGQ_FAMILIES)


# In the order of the tables' rows.
METHODS: dict[str, Method] = {
    "sgd": Method("SGD", optimizers.sgd, _PAPER_SGD, _PAPER_SGD_FAMILIES),
    "adam": Method("Adam", optimizers.adam, {"lr": 1e-3}, _decayed(vgg={"lr": 1e-4})),
    "lookahead": Method(
        "Lookahead",
        libraries.lookahead,
        {**_PAPER_SGD, "k": 5, "alpha": 0.5},
        _PAPER_SGD_FAMILIES,
        library="pytorch_optimizer",
    ),
    "cocob": Method(
        "COCOB", libraries.cocob, {"alpha": 100.0}, _decayed(), library="parameterfree"
    ),
    "armijo": Method("Armijo", optimizers.armijo, {"lr": 0.5, "c": 0.1, "backtrack": 0.9}),
    "pal": Method(
        "PAL",
        optimizers.pal,
        {"measuring_step": 0.5, "max_step": 3.16, "direction_factor": 0.4, "step_factor": 1 / 0.6},
    ),
    "cgq": _cgq("CGQ(2pt)"),
    "cgq_ls": _cgq("CGQ(LS)", fit="least_squares"),
    "scgq": _cgq("sCGQ(2pt)", search_prob=0.1),
    "scgq_ls": _cgq("sCGQ(LS)", search_prob=0.1, fit="least_squares"),
    "sgd_cosine": Method(
        "SGD + cosine", optimizers.sgd, _PAPER_SGD, _COSINE_SGD_FAMILIES, schedules.cosine
    ),
    "sgd_warm_cosine": Method(
        "SGD + warm-up, cosine",
        optimizers.sgd,
        _PAPER_SGD,
        _COSINE_SGD_FAMILIES,
        schedules.warm_cosine,
    ),
    "adamw": Method(
        "AdamW", optimizers.adamw, _ADAMW, {"vgg": {"lr": 3e-4}, "gpt10m": {"lr": 3e-4}}
    ),
    "adamw_cosine": Method(
        "AdamW + cosine",
        optimizers.adamw,
        _ADAMW,
        # The best of the sweep at 1,500 steps.
        {"vgg": {"lr": 3e-4}, "gpt1m": {"lr": 3e-3}, "gpt10m": {"lr": 1e-3}},
        schedules.warm_cosine,
    ),
    "adagrad": Method("Adagrad", optimizers.adagrad, {"lr": 0.01}),
    "muon": Method("Muon", optimizers.muon, {**_ADAMW, "lr": 0.01}),
    "schedulefree_sgd": Method(
        "Schedule-Free SGD",
        libraries.schedulefree_sgd,
        {"lr": 1.0, "momentum": 0.9},
        _decayed(),
        library="schedulefree",
    ),
    "schedulefree_adamw": Method(
        "Schedule-Free AdamW",
        libraries.schedulefree_adamw,
        {"lr": 2.5e-3, "weight_decay": 0.01},
        library="schedulefree",
    ),
    "prodigy": Method(
        "Prodigy", libraries.prodigy, {"lr": 1.0, "weight_decay": 0.01}, library="prodigyopt"
    ),
    "dadaptation": Method(
        "D-Adaptation", libraries.dadaptation, {"lr": 1.0}, _decayed(), library="dadaptation"
    ),
    "dog": Method("DoG", libraries.dog, {"lr": 1.0}, _decayed(), library="dog"),
    # Beyond the paper: no rate at all. The ceiling is the step's length relative to the weights.
    "scgq_relative": Method(
        "sCGQ, relative",
        optimizers.cgq,
        {
            "lr": None,
            "max_relative_step": 0.005,
            "max_momentum": 0.8,
            "max_fits": 3,
            "smoothing": 0.5,
            "search_prob": 0.1,
            "decoupled_weight_decay": True,
        },
        DECAY,
    ),
    "search": Method(
        "LineSearch",
        optimizers.search,
        {"base": "adamw", "lr": 1e-3, "max_relative_step": 0.005, "search_prob": 0.1},
        _decayed(
            vgg=_SEARCHED_SGD, resnet=_SEARCHED_SGD, densenet=_SEARCHED_SGD, mlp=_SEARCHED_SGD
        ),
    ),
}


@dataclass(frozen=True)
class Chosen:
    """A method with all its settings, for one network."""

    name: str
    label: str
    settings: dict[str, Any]
    _make: Factory
    _schedule: Schedule | None

    def optimizer(self, model: nn.Module, budget: Budget, seed: int) -> Optimizer:
        """The optimizer for `model`; `seed` is for what a method draws itself."""
        return self._make(model, budget, seed, **self.settings)

    def scheduler(self, optimizer: Optimizer, budget: Budget) -> LRScheduler | None:
        """The schedule, stepped once a batch, of a method that has one."""
        return self._schedule(optimizer, budget) if self._schedule else None


def chosen(method: str, network: str) -> Chosen:
    """The method that a text such as `sgd:lr=0.05` names, with its settings for a network.

    >>> chosen("sgd:lr=0.05", "mlp").settings
    {'lr': 0.05, 'momentum': 0.9}
    >>> chosen("scgq", "densenet100").settings["lr"]
    0.1
    """
    name, _, assignments = method.partition(":")
    if name not in METHODS:
        raise ValueError(f"There is no method {name!r}. Choose from: {', '.join(METHODS)}.")
    found = METHODS[name]
    given = dict(_assignment(text, method) for text in assignments.split(",") if text)
    known = {
        key: hint
        for key, hint in get_type_hints(found.make).items()
        if key not in ("model", "budget", "seed", "return")
    }
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{name!r} has no setting {key!r}. It has: {', '.join(known)}.")
        if not _is_a(value, known[key]):
            wanted = getattr(known[key], "__name__", str(known[key]))
            raise ValueError(f"{key} in {method!r} is {value!r}. It must be: {wanted}.")
    if found.library and find_spec(found.library) is None:
        raise ValueError(
            f'{name!r} needs the library {found.library}. Install it: pip install "cgq[bench]".'
        )
    label = found.label + (f" {assignments.replace(',', ', ')}" if given else "")
    settings = {**found.settings_for(network), **given}
    return Chosen(method, label, settings, found.make, found.schedule)


def _assignment(text: str, method: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not (key and sign and value):
        raise ValueError(f"Cannot read {text!r} in {method!r}. Write name:setting=value,....")
    value = {"true": "True", "false": "False", "none": "None"}.get(value.strip().lower(), value)
    try:
        return key.strip(), ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key.strip(), value.strip()


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, or of one of several; a whole number is a number too."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    kinds = get_args(hint) or (hint,)
    return type(value) in kinds or (type(value) is int and float in kinds)
