"""The loss along the search line: exact on a parabola, honest on a network, and without a trace."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from cgq import CGQ
from cgqbench.training.landscape import Landscape, landscape

Closure = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


class Point(nn.Module):
    """A vector in a function's domain."""

    def __init__(self, start: Tensor, value: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.theta = nn.Parameter(start)
        self.value = value

    def forward(self) -> Tensor:
        return self.value(self.theta)


def closure_of(model: nn.Module, optimizer: CGQ, loss_of: Callable[[], Tensor]) -> Closure:
    """A closure that zeroes gradients in place whether or not it runs backward."""

    def closure(backward: bool = True) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of()
        if backward:
            loss.backward()
        return loss

    return closure


def seen(model: nn.Module, optimizer: CGQ, **how: Any) -> Landscape:
    found = landscape(model, optimizer, closure_of(model, optimizer, model), **how)
    assert found is not None
    return found


@pytest.mark.parametrize("nesterov", [False, True])
def test_on_a_quadratic_grid_and_parabolas_are_one(nesterov: bool) -> None:
    root = torch.randn(6, 6, dtype=torch.float64)
    hessian = root @ root.T
    model = Point(torch.randn(6, dtype=torch.float64), lambda x: x @ hessian @ x / 2 + 1.0)
    optimizer = CGQ(model.parameters(), lr=10.0, nesterov=nesterov)
    for _ in range(3):
        theta = model.theta.detach().clone()
        found = seen(model, optimizer)
        p = (model.theta.detach() - theta) / found.step_size
        a = (p @ hessian @ p / 2).item()
        b = (theta @ hessian @ p).item()
        c = (theta @ hessian @ theta / 2 + 1.0).item()
        assert [found.loss, found.slope] == pytest.approx([c, b], rel=1e-9)
        q = [(a * x + b) * x + c for x in found.grid]
        assert found.losses == pytest.approx(q, rel=1e-9)
        assert found.two_point == pytest.approx([a, b, c], rel=1e-6)
        assert found.least_squares == pytest.approx([a, b, c], rel=1e-6)


def test_the_slope_is_that_of_the_grid() -> None:
    model = Point(torch.randn(9, dtype=torch.float64), lambda x: x.cosh().log().sum() + x.sum() / 9)
    found = seen(model, CGQ(model.parameters()), points=3, stretch=1e-3)
    phi_0, phi_1, phi_2 = found.losses
    assert phi_0 is not None
    assert phi_1 is not None
    assert phi_2 is not None
    assert phi_0 == found.loss
    forward = (-3.0 * phi_0 + 4.0 * phi_1 - phi_2) / (2.0 * found.grid[1])
    assert forward == pytest.approx(found.slope, rel=1e-6)


class Task:
    """A network with dropout and BatchNorm, and a new batch for each step."""

    def __init__(self, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(
            nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 3)
        ).to(dtype)
        groups = [
            {"params": self.model[0].parameters(), "lr": 0.1},
            {"params": [*self.model[1].parameters(), *self.model[4].parameters()]},
        ]
        self.optimizer = CGQ(groups, **options)
        self.closure = closure_of(self.model, self.optimizer, self.loss)
        self.dtype = dtype
        self.draw()

    def draw(self) -> None:
        self.inputs = torch.randn(8, 5, dtype=self.dtype)
        self.targets = torch.randint(3, (8,))

    def loss(self) -> Tensor:
        noise = 0.1 * random.random() + 0.1 * numpy.random.random()
        logits: Tensor = self.model(self.inputs + noise)
        return nn.functional.cross_entropy(logits, self.targets)

    def trace(self) -> list[Any]:
        """All that a step may leave behind."""
        return [
            *(value.clone() for value in self.model.state_dict().values()),
            *(None if p.grad is None else p.grad.clone() for p in self.model.parameters()),
            torch.get_rng_state(),
            random.getstate(),
            numpy.random.get_state(legacy=False)["state"]["pos"],
            *numpy.random.get_state(legacy=False)["state"]["key"].tolist(),
            *(
                tensor.clone()
                for state in self.optimizer.state.values()
                for tensor in state.values()
            ),
            [{**group, "params": None} for group in self.optimizer.param_groups],
            self.optimizer.last_search,
        ]


def same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"nesterov": True, "smoothing": 0.5},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "decoupled_weight_decay": True},
    {"max_relative_step": 0.05, "smoothing": 0.5},
    {"max_relative_step": 0.05, "probe": 0.01, "lr": 3.0},
    {"lr": 0.01},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_grid_passes_through_the_trials(options: dict[str, Any]) -> None:
    task = Task(torch.float64, **options)
    for _ in range(4):
        found = landscape(task.model, task.optimizer, task.closure)
        assert found is not None
        assert found.losses[0] == found.loss
        longest = max(found.trial_steps)
        trial = found.trial_losses[found.trial_steps.index(longest)]
        assert found.grid[20] == longest
        assert found.losses[20] == pytest.approx(trial, rel=1e-9)
        assert found.grid[40] == 2.0 * longest
        task.draw()


def test_the_chosen_point_is_met_bit_for_bit() -> None:
    task = Task(lr=0.01)
    for _ in range(4):
        found = landscape(task.model, task.optimizer, task.closure)
        assert found is not None
        assert found.capped
        assert found.step_size == found.grid[20] == found.ceiling
        assert found.losses[20] == found.trial_losses[-1]
        task.draw()


def test_in_single_precision_the_trials_are_met_closely() -> None:
    task = Task()
    found = landscape(task.model, task.optimizer, task.closure)
    assert found is not None
    trial = found.trial_losses[found.trial_steps.index(found.grid[20])]
    assert found.losses[20] == pytest.approx(trial, rel=1e-6)


@pytest.mark.parametrize("options", [*OPTIONS, {"search_prob": 0.5}], ids=str)
def test_a_landscape_leaves_no_trace(options: dict[str, Any]) -> None:
    recorded, plain = Task(**options), Task(**options)
    traces: list[list[list[Any]]] = []
    for task in (recorded, plain):
        _reseed()
        steps = []
        for _ in range(6):
            task.draw()
            if task is recorded:
                landscape(task.model, task.optimizer, task.closure, points=5)
            else:
                task.optimizer.step(task.closure)
            steps.append(task.trace())
        traces.append(steps)
    for one, other in zip(*traces, strict=True):
        assert len(one) == len(other)
        assert all(map(same, one, other))


def _reseed() -> None:
    torch.manual_seed(2)
    random.seed(2)
    numpy.random.seed(2)


def test_a_closure_that_fails_on_the_grid_leaves_the_step() -> None:
    failing, plain = Task(), Task()
    _reseed()
    plain.optimizer.step(plain.closure)
    search = plain.optimizer.last_search
    assert search is not None
    calls = []

    def closure(backward: bool = True) -> Tensor:
        calls.append(backward)
        if len(calls) > 1 + search.evaluations + 2:
            raise OSError("the disk is full")
        return failing.closure(backward)

    _reseed()
    with pytest.raises(OSError, match="disk"):
        landscape(failing.model, failing.optimizer, closure)
    assert all(map(same, failing.trace(), plain.trace()))


def test_a_step_without_a_search_has_no_landscape() -> None:
    task = Task(search_prob=0.0)
    found = [landscape(task.model, task.optimizer, task.closure) for _ in range(2)]
    assert [one is None for one in found] == [False, True]  # the first step always searches


def test_a_search_without_a_usable_trial_has_no_landscape() -> None:
    start = torch.ones(1, dtype=torch.float64)
    model = Point(start.clone(), lambda x: torch.where(x == 1.0, x, torch.nan).sum())
    optimizer = CGQ(model.parameters())
    assert landscape(model, optimizer, closure_of(model, optimizer, model)) is None
    assert optimizer.last_search is not None
    assert torch.equal(model.theta.detach(), start)


def test_what_is_not_finite_is_none() -> None:
    model = Point(torch.ones(1, dtype=torch.float64), lambda x: (x * x - x.log()).sum())
    found = seen(model, CGQ(model.parameters(), lr=3.0, probe=3.0))
    assert found.trial_losses[0] is None
    assert found.two_point is None  # its only trial tells nothing
    assert found.least_squares is not None
    assert found.losses[0] is not None
    assert found.losses[-1] is None


def test_climbing_is_shown_in_the_users_sign() -> None:
    model = Point(torch.ones(3, dtype=torch.float64), lambda x: -x @ x)
    found = seen(model, CGQ(model.parameters(), maximize=True, lr=10.0))
    assert found.slope > 0.0
    assert found.two_point == pytest.approx([-12.0, 12.0, -3.0])
    assert found.losses[0] == found.loss == -3.0


def test_a_line_is_the_records() -> None:
    task = Task()
    found = landscape(task.model, task.optimizer, task.closure, points=3)
    assert found is not None
    line = json.loads(json.dumps(found.as_line(step=17, epoch=1), allow_nan=False))
    assert list(line) == [
        *("kind", "step", "epoch", "loss", "slope", "grid", "losses", "trial_steps"),
        *("trial_losses", "step_size", "accepted", "capped", "ceiling"),
        *("two_point", "least_squares"),
    ]
    assert (line["kind"], line["step"], line["epoch"]) == ("landscape", 17, 1)
    assert line["ceiling"] == 0.3
    assert len(line["grid"]) == len(line["losses"]) == 3


@pytest.mark.parametrize("probe", [None, 1e-3])
def test_a_relative_ceiling_is_told_in_absolute_terms(probe: float | None) -> None:
    model = Point(torch.full((4,), 2.0, dtype=torch.float64), lambda x: x @ x / 2)
    found = seen(model, CGQ(model.parameters(), lr=9.0, max_relative_step=0.25, probe=probe))
    assert found.ceiling == pytest.approx(0.25)  # |θ| = |p|: the gradient is θ


@pytest.mark.parametrize("how", [{"points": 1}, {"stretch": 0.0}, {"stretch": float("nan")}])
def test_a_grid_needs_points_and_length(how: dict[str, Any]) -> None:
    task = Task()
    before = task.trace()
    with pytest.raises(ValueError, match="2 points and a length"):
        landscape(task.model, task.optimizer, task.closure, **how)
    assert all(map(same, before, task.trace()))
