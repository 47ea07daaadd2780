"""CGQ and its slow, obvious twin, stepped side by side."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rounding import SHADOWS, Rounding
from torch import Tensor
from torch.nn.functional import cross_entropy

import cgq
import twin
from cgq import CGQ
from ids import option_id
from twin import Twin

pytestmark = pytest.mark.filterwarnings("ignore:Nearly all of the last hundred:UserWarning")

STEPS = 120
SIZES = [(6, 5), (6,), (3, 6), (3,)]

FITS = {
    cgq.two_point: twin.fit_two_points,
    cgq.least_squares: twin.fit_least_squares,
    functools.partial(cgq.least_squares, with_slope=False): twin.fit_without_slope,
}
RULES = {
    cgq.polak_ribiere: twin.polak_ribiere,
    cgq.fletcher_reeves: twin.fletcher_reeves,
    cgq.hestenes_stiefel: twin.hestenes_stiefel,
    cgq.dai_yuan: twin.dai_yuan,
}

OPTIONS: list[dict[str, Any]] = [
    {},
    *({"fit": fit} for fit in FITS),
    *({"momentum": rule} for rule in RULES),
    *({"momentum": rule, "nesterov": True, "smoothing": 0.5} for rule in RULES),
    {"momentum": 0.0},
    {"momentum": 0.9},
    {"momentum": 0.6, "nesterov": True},
    {"max_momentum": 0.3},
    {"lr": 0.05},
    {"lr": 0.6, "max_fits": 1},
    {"lr": 0.6, "max_fits": 6, "fit": cgq.least_squares},
    {"probe": 0.7},
    {"smoothing": 0.5},
    {"weight_decay": 0.01},
    {"weight_decay": 0.01, "nesterov": True},
    {"weight_decay": 0.01, "momentum": 0.5, "nesterov": True},
    {"weight_decay": 0.01, "decoupled_weight_decay": True},
    {"weight_decay": 0.3, "decoupled_weight_decay": True, "nesterov": True},
    {"search_prob": 0.1, "seed": 7},
    {"search_prob": 0.1, "smoothing": 0.5, "weight_decay": 0.01},
    {"search_prob": 0.3, "momentum": 0.6, "nesterov": True, "weight_decay": 0.01},
    {"search_prob": 0.0},
    {"max_relative_step": 0.005},
    {"max_relative_step": 0.05, "lr": 30.0, "smoothing": 0.5, "search_prob": 0.2},
    {"max_relative_step": 0.02, "lr": 30.0, "probe": 0.5, "nesterov": True},
    {
        "max_relative_step": 0.02,
        "lr": 30.0,
        "weight_decay": 0.01,
        "decoupled_weight_decay": True,
        "search_prob": 0.3,
    },
    {"max_relative_step": 0.02, "lr": 30.0, "weight_decay": 0.01, "nesterov": True},
]


def network_loss(parts: list[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
    w1, b1, w2, b2 = parts
    return cross_entropy(torch.tanh(inputs @ w1.T + b1) @ w2.T + b2, targets)


def split(theta: Tensor) -> list[Tensor]:
    counts = [torch.Size(size).numel() for size in SIZES]
    return [part.view(size) for part, size in zip(theta.split(counts), SIZES, strict=True)]


class SideBySide:
    """The twin, and shadows of it: by how much may CGQ differ?"""

    def __init__(self, make: Callable[[], Twin]) -> None:
        self.twin, self.rounding = make(), Rounding()
        self.shadows = [make() for _ in range(SHADOWS)]

    def step(self, f: Callable[[Tensor], Tensor] | None, gradient: Tensor | None = None) -> None:
        off = self.rounding.off
        self.twin.step(f, gradient)
        for shadow in self.shadows:
            shadow.step(None if f is None else lambda theta: off(f(theta)), gradient)
            shadow.theta = off(shadow.theta)

    def check(self, **found: Any) -> None:
        for name, value in found.items():
            shadows = [getattr(shadow, name) for shadow in self.shadows]
            self.rounding.check(name, value, getattr(self.twin, name), shadows)


def check_side_by_side(options: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    """Step both for 200 batches. `groups[k]` sets what the k-th pair of tensors does not share."""
    torch.manual_seed(3)
    theta = torch.cat(
        [0.5 * torch.randn(torch.Size(s), dtype=torch.float64).flatten() for s in SIZES]
    )
    params = [torch.nn.Parameter(part.clone()) for part in split(theta)]
    pairs = [params[:2], params[2:]]
    # The twin is the paper's, which no high loss makes search.
    unwatched = [
        {"params": pair, "watched": False, **own} for pair, own in zip(pairs, groups, strict=True)
    ]
    optimizer = CGQ(unwatched, **options)

    def elementwise(name: str) -> Tensor:
        values = [float(group[name]) for group in optimizer.param_groups for _ in group["params"]]
        return torch.cat(
            [torch.full_like(p.flatten(), v) for p, v in zip(params, values, strict=True)]
        )

    shared = {k: v for k, v in options.items() if k not in ("lr", "weight_decay")}
    if "fit" in shared:
        shared["fit"] = FITS[shared["fit"]]
    if callable(shared.get("momentum")):
        shared["momentum"] = RULES[shared["momentum"]]
    lr, decay = (elementwise(name).detach() for name in ("lr", "weight_decay"))
    reference = SideBySide(lambda: Twin(theta, lr, decay, **shared))
    ratio = optimizer.param_groups[1]["lr"] / max(g["lr"] for g in optimizer.param_groups)

    inputs = torch.randn(64, 5, dtype=torch.float64)
    targets = torch.randint(0, 3, (64,))
    sign = -0.05 if options.get("maximize") else 1.0  # climbing: something bounded above
    for step in range(STEPS):
        batch = torch.randperm(64)[:16]
        x, y = inputs[batch], targets[batch]

        def loss(parts: list[Tensor], x: Tensor = x, y: Tensor = y) -> Tensor:
            return sign * network_loss(parts, x, y)

        optimizer.step(lambda loss=loss: loss(params))
        reference.step(lambda theta, loss=loss: loss(split(theta)))
        reference.check(
            theta=torch.cat([param.detach().flatten() for param in params]),
            beta=optimizer.param_groups[0]["beta"],
            step_size=optimizer.param_groups[1]["step_size"] / ratio,
        )
        searched = step == 0 or reference.twin.searched_last
        assert (optimizer.last_search is not None) == searched, step


@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
def test_twin_agrees_with_one_setting_for_all(options: dict[str, Any]) -> None:
    check_side_by_side(options, [{}, {}])


@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
def test_twin_agrees_with_groups_that_differ(options: dict[str, Any]) -> None:
    lr = options.get("lr", 0.3)
    check_side_by_side(options, [{"lr": lr, "weight_decay": 0.02}, {"lr": lr / 4}])


@pytest.mark.parametrize("extra", [{}, {"weight_decay": 0.01, "search_prob": 0.3}])
def test_twin_agrees_when_climbing(extra: dict[str, Any]) -> None:
    check_side_by_side({"maximize": True, "lr": 3.0, **extra}, [{}, {}])


@pytest.mark.filterwarnings("ignore:No step had a closure:UserWarning")
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}]
)
def test_twin_agrees_without_closures(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    theta = torch.randn(20, dtype=torch.float64)
    param = torch.nn.Parameter(theta.clone())
    optimizer = CGQ([param], **options)
    shared = {k: v for k, v in options.items() if k != "weight_decay"}
    decay = torch.full_like(theta, options.get("weight_decay", 0.0))
    lr = torch.full_like(theta, 0.3)
    reference = SideBySide(lambda: Twin(theta, lr, decay, **shared))
    for _ in range(STEPS):
        param.grad = torch.randn_like(param)
        assert optimizer.step() is None
        reference.step(None, param.grad)
        reference.check(theta=param.detach())
