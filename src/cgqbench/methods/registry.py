"""The methods by name, with the settings the paper's experiments used for each network."""

from __future__ import annotations

from typing import Any

from cgqbench.methods import libraries, optimizers, schedules
from cgqbench.methods.method import Method, Settings

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


_PAPER_SGD = {"lr": 0.1, "momentum": 0.9}
_PAPER_SGD_FAMILIES = _decayed(mlp={"lr": 0.01}, vgg={"lr": 0.02}, gpt={"lr": 0.1})
_COSINE_SGD_FAMILIES = _decayed(mlp={"lr": 0.05}, vgg={"lr": 0.02})
_ADAMW = {"lr": 1e-3, "weight_decay": 0.01}
_SEARCHED_SGD = {"base": "sgd", "lr": 0.1}  # which shows that this rate is of no account
_PAPER_CGQ = {"lr": 0.3, "max_momentum": 0.8, "max_fits": 3, "smoothing": 0.5}
_PAPER_CGQ_FAMILIES = _decayed(
    vgg={"lr": 0.05}, resnet={"nesterov": True}, densenet={"lr": 0.1, "nesterov": True}
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
    # Its first step moves every weight by 1/alpha, which at 100 kills a plain VGG within ten steps.
    "cocob": Method("COCOB", optimizers.cocob, {"alpha": 100.0}, _decayed(vgg={"alpha": 1000.0})),
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
    "mechanic": Method(
        "Mechanic(AdamW)",
        libraries.mechanic,
        {"lr": 1.0, "weight_decay": 0.01},
        library="mechanic_pytorch",
    ),
    "gen": Method("GeN(AdamW)", optimizers.gen, {"lr": 1e-4, "weight_decay": 0.01}),
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
