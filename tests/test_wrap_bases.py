"""LineSearch around every optimizer of torch, and those of two libraries."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cgq import LineSearch

REFUSED = {"LBFGS", "SparseAdam", "Optimizer"}
TORCH = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name not in REFUSED
}
SCHEDULE_FREE = ["AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"]
LIBRARY = [
    *("AdaBelief", "AdaBound", "Adai", "Adan", "AdEMAMix", "ADOPT", "AdamP", "Amos", "ApolloDQN"),
    *("CAME", "DiffGrad", "FAdam", "GaLore", "Grams", "Kron", "Lamb", "LaProp", "LARS", "Lion"),
    *("AccSGD", "MARS", "NovoGrad", "PAdam", "Prodigy", "RACS", "SCION", "SGDP", "Shampoo"),
    *("SignSGD", "SM3", "SOAP", "StableAdamW", "TAM", "Tiger", "Yogi"),
]
STEPS = 80


class Problem:
    """A small regression, whose weights are all matrices: Muon takes no others."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False)
        )
        self.inputs = torch.randn(64, 6)
        self.targets = self.inputs[:, :1] * self.inputs[:, 1:2] + self.inputs[:, 2:3]

    def loss(self) -> Tensor:
        return nn.functional.mse_loss(self.model(self.inputs), self.targets)


def trained(make: Callable[[Any], Any], steps: int, **options: Any) -> tuple[LineSearch, float]:
    """The optimizer and by what factor the loss has changed."""
    problem = Problem()
    base = make(problem.model.parameters())
    optimizer = LineSearch(base, **options)
    if hasattr(base, "train"):  # schedule-free methods ask for it
        base.train()
    start = problem.loss().item()
    for _ in range(steps):
        optimizer.step(problem.loss)
    return optimizer, problem.loss().item() / start


def counts(base: Any) -> set[int]:
    """How often the base says it has stepped."""
    states = [state for state in base.state.values() if isinstance(state, dict)]
    found = [state["step"] for state in states if "step" in state]
    found += [group[name] for group in base.param_groups for name in ("step", "k") if name in group]
    return {int(number) for number in found}


def assert_trains(make: Callable[[Any], Any]) -> Any:
    optimizer, change = trained(make, STEPS)
    assert change < 0.97
    taken = optimizer.param_groups[0]["steps"]
    assert taken + optimizer.param_groups[0]["skipped"] == STEPS
    assert taken >= STEPS // 2
    assert counts(optimizer.base) <= {taken, taken + 1}  # some count from 1
    return optimizer.base


@pytest.mark.parametrize("kind", TORCH.values(), ids=TORCH.keys())
def test_torch(kind: Any) -> None:
    base = assert_trains(kind)
    if kind not in (torch.optim.SGD, vars(torch.optim).get("Muon")):  # they count no steps
        assert counts(base) == {STEPS}


def test_all_of_torch_is_there() -> None:
    assert {"AdamW", "SGD", "Adagrad", "Rprop", "RMSprop", "ASGD", "NAdam"} <= TORCH.keys()


@pytest.mark.parametrize("options", [{"foreach": False}, {"fused": True}, {"amsgrad": True}])
def test_ways_of_adamw(options: dict[str, Any]) -> None:
    assert_trains(functools.partial(torch.optim.AdamW, **options))


@pytest.mark.parametrize("name", SCHEDULE_FREE)
def test_schedule_free(name: str) -> None:
    schedulefree = pytest.importorskip("schedulefree")
    assert_trains(getattr(schedulefree, name))


def test_schedule_free_around_another() -> None:
    schedulefree = pytest.importorskip("schedulefree")
    wrapper = schedulefree.ScheduleFreeWrapper
    assert_trains(lambda params: wrapper(torch.optim.SGD(params, lr=0.1), momentum=0.9))


@pytest.fixture(scope="module")
def library() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("pytorch_optimizer")


@pytest.mark.filterwarnings("ignore::UserWarning:pytorch_optimizer")
@pytest.mark.parametrize("name", LIBRARY)
def test_library(name: str, library: Any) -> None:
    assert_trains(getattr(library, name))


def test_an_optimizer_inside_an_optimizer_is_undone_too(library: Any) -> None:
    """Lookahead keeps slow weights, and its inner optimizer the moments."""
    problem = Problem()
    base = library.Lookahead(torch.optim.AdamW(problem.model.parameters()), k=2)
    optimizer = LineSearch(base, max_relative_step=0.02)
    start = problem.loss().item()
    for _ in range(STEPS):
        optimizer.step(problem.loss)
    assert problem.loss().item() < 0.97 * start
    inner = [state["step"].clone() for state in base.optimizer.state.values()]
    slow = [state["slow_params"].clone() for state in base.state.values()]
    calls = 0

    def failing() -> Tensor:
        nonlocal calls
        calls += 1
        if calls >= 2:
            raise ValueError
        return problem.loss()

    while calls < 2:
        calls = 0
        try:
            optimizer.step(failing)
        except ValueError:
            break
        inner = [state["step"].clone() for state in base.optimizer.state.values()]
        slow = [state["slow_params"].clone() for state in base.state.values()]
    assert calls > 2
    assert inner == [state["step"] for state in base.optimizer.state.values()]
    for before, state in zip(slow, base.state.values(), strict=True):
        assert torch.equal(before, state["slow_params"])


RATES = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]


@pytest.fixture(params=[torch.float32, torch.float64])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad", "Muon", "Lion"])
def test_the_base_s_rate_hardly_matters(name: str, library: Any, dtype: torch.dtype) -> None:
    kind = TORCH.get(name) or getattr(library, name)
    # The base's decay is in proportion to its rate, and so part of the direction at any rate.
    changes = [trained(functools.partial(kind, lr=lr), 150)[1] for lr in RATES]
    assert max(changes) < 0.9
    # Where rounding differs a judge may cross its bound in one of them, and Lion's signs turn.
    rounding = 1.001 if dtype == torch.float64 else 1.35
    assert max(changes) / min(changes) < rounding
