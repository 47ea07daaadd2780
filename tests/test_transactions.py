"""A step that fails leaves parameters, buffers, generators and optimizer state as they were."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import cgq
from cgq import CGQ, ConjugateDescent
from ids import option_id

OPTIONS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9, "nesterov": True},
    {"weight_decay": 0.01},
    {"weight_decay": 0.01, "decoupled_weight_decay": True},
    {"max_relative_step": 0.01, "lr": 10.0},
    {"fit": cgq.least_squares, "smoothing": 0.5},
]


class Noisy(nn.Module):
    """Dropout, BatchNorm, and draws from Python's and NumPy's generators."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * (1 + 0.1 * random.random() + 0.1 * numpy.random.rand())


class Run:
    """A small training run whose closure can be made to misbehave at a given call."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        self.model = Noisy().double()
        make = ConjugateDescent if "search" in options else CGQ
        self.optimizer = make(self.model.parameters(), **options)
        self.inputs, self.targets = torch.randn(16, 4).double(), torch.randn(16, 1).double()
        self.calls = 0
        self.mischief: dict[int, Callable[[Tensor], Any]] = {}

    def closure(self) -> Any:
        loss = nn.functional.mse_loss(self.model(self.inputs), self.targets)
        act = self.mischief.get(self.calls)
        self.calls += 1
        return loss if act is None else act(loss)

    def step(self, mischief: dict[int, Callable[[Tensor], Any]] | None = None) -> Any:
        self.calls, self.mischief = 0, mischief or {}
        return self.optimizer.step(self.closure)

    def snapshot(self, *, with_skipped: bool = True) -> Any:
        state = copy.deepcopy(self.optimizer.state_dict())
        if not with_skipped:
            for group in state["param_groups"]:
                del group["skipped"]
        generators = random.getstate(), str(numpy.random.get_state()), torch.get_rng_state()
        return copy.deepcopy(self.model.state_dict()), state, generators


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b or (a != a and b != b)


def raising(error: BaseException) -> Callable[[Tensor], Any]:
    def act(loss: Tensor) -> Any:
        raise error

    return act


def from_call(call: int, act: Callable[[Tensor], Any]) -> dict[int, Callable[[Tensor], Any]]:
    return dict.fromkeys(range(call, 20), act)


@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ValueError("no"), 0),
        (ValueError("no"), 1),
        (KeyboardInterrupt(), 0),
        (KeyboardInterrupt(), 1),
        (KeyboardInterrupt(), 2),
    ],
)
def test_closure_that_raises(
    options: dict[str, Any], warm_up: int, error: BaseException, call: int
) -> None:
    run = Run(**options)
    for _ in range(warm_up):
        run.step()
    before = run.snapshot()
    try:
        with pytest.raises(type(error)):
            run.step(from_call(call, raising(error)))
    except pytest.fail.Exception:
        assert run.calls <= call, "the search ended before the call that would raise"
        return
    assert_same(run.snapshot(), before)
    for _ in range(3):
        run.step()
    after = run.snapshot()
    clean = Run(**options)  # seeds the generators again: its steps must not mix with the others
    for _ in range(warm_up + 3):
        clean.step()
    assert_same(clean.snapshot(), after)


@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize("search_prob", [1.0, 0.0])
def test_loss_that_is_not_finite(
    options: dict[str, Any], value: float, warm_up: int, search_prob: float
) -> None:
    run = Run(**options, search_prob=search_prob)
    for _ in range(warm_up):
        run.step()
    before = run.snapshot(with_skipped=False)
    run.step({0: lambda loss: loss * value})
    assert run.calls == 1
    assert_same(run.snapshot(with_skipped=False), before)
    assert run.optimizer.param_groups[0]["skipped"] == 1
    run.step()
    assert run.optimizer.param_groups[0]["skipped"] == 1


@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
def test_gradient_that_is_not_finite(options: dict[str, Any]) -> None:
    run = Run(**options)
    run.step()
    before = run.snapshot(with_skipped=False)
    # sqrt(0): a finite loss with an infinite slope, times 0: a gradient of NaN.
    run.step({0: lambda loss: loss + torch.sqrt(0.0 * loss)})
    assert_same(run.snapshot(with_skipped=False), before)
    run.optimizer.zero_grad()
    for param in run.model.parameters():
        param.grad = torch.full_like(param, math.inf)
    run.optimizer.step()
    assert_same(run.snapshot(with_skipped=False), before)
    assert run.optimizer.param_groups[0]["skipped"] == 2


@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_probe_that_is_not_finite_is_a_rejected_trial(
    options: dict[str, Any], value: float
) -> None:
    run = Run(**options)
    run.step({1: lambda loss: loss * value})
    search = run.optimizer.last_search
    assert search is not None
    assert not math.isfinite(search.trial_losses[0])
    assert search.trial_steps[1] == pytest.approx(0.1 * search.trial_steps[0])
    assert search.step_size in search.trial_steps[1:]
    assert all(map(math.isfinite, search.trial_losses[1:]))
    assert run.optimizer.param_groups[0]["skipped"] == 0


@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
def test_search_without_a_finite_trial_is_skipped(options: dict[str, Any]) -> None:
    run = Run(**options)
    run.step()
    before = run.snapshot(with_skipped=False)
    run.step({call: lambda loss: loss * math.nan for call in range(1, 10)})
    assert run.calls == 1 + 1 + run.optimizer.options.max_fits
    assert_same(run.snapshot(with_skipped=False), before)
    assert run.optimizer.param_groups[0]["skipped"] == 1
    assert run.optimizer.last_search is not None
    assert run.optimizer.last_search.step_size == 0.0


@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
def test_generators_and_buffers_end_as_after_one_pass(options: dict[str, Any]) -> None:
    run = Run(**options)
    for _ in range(5):
        weights = copy.deepcopy(run.model.state_dict())
        generators = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        ordinary = run.closure().item()
        expected = run.snapshot()
        run.model.load_state_dict(weights)
        random.setstate(generators[0])
        numpy.random.set_state(generators[1])
        torch.set_rng_state(generators[2])
        assert float(run.step()) == ordinary
        assert run.optimizer.last_search is not None
        mine = run.snapshot()
        assert_same(mine[2], expected[2])
        for name, _ in run.model.named_buffers():
            assert torch.equal(mine[0][name], expected[0][name])


def test_generator_that_only_a_failing_probe_draws_from() -> None:
    weight = nn.Parameter(torch.ones(2))
    before = random.getstate()

    def closure(backward: bool) -> Tensor:
        loss = (weight - 3).square().sum()
        if backward:
            loss.backward()
        else:
            random.random()
            raise ValueError
        return loss

    with pytest.raises(ValueError):  # noqa: PT011
        CGQ([weight]).step(closure)
    assert random.getstate() == before


@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
def test_accepted_steps_descend_where_they_land(options: dict[str, Any]) -> None:
    """The search's claim, checked again after the step with the same noise."""
    run = Run(**{**options, "smoothing": 0.0})
    for _ in range(20):
        generators = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        old = copy.deepcopy(run.model.state_dict())
        loss = float(run.step())
        search = run.optimizer.last_search
        if search is None or not search.accepted:
            continue
        after = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        trained = copy.deepcopy(run.model.state_dict())
        for name, _ in run.model.named_buffers():
            run.model.state_dict()[name].copy_(old[name])
        random.setstate(generators[0])
        numpy.random.set_state(generators[1])
        torch.set_rng_state(generators[2])
        landed = run.closure().item()
        assert landed < loss
        at_step = dict(zip(search.trial_steps, search.trial_losses, strict=True))
        assert landed == pytest.approx(at_step[search.step_size], rel=1e-12)
        run.model.load_state_dict(trained)
        random.setstate(after[0])
        numpy.random.set_state(after[1])
        torch.set_rng_state(after[2])
