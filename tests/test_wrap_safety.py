"""What LineSearch does where things go wrong slowly: none of it in silence."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cgq import LineSearch
from cgq.engine.run_guard import earned_ceiling
from cgq.rules.trust import Trust


class Task:
    """Three classes that a small network can tell apart."""

    def __init__(self, bias: bool = True) -> None:
        torch.manual_seed(0)
        self.inputs = torch.randn(256, 10)
        self.targets = (self.inputs @ torch.randn(10, 3)).argmax(1)
        self.model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3, bias=bias))

    def loss(self) -> Tensor:
        return nn.functional.cross_entropy(self.model(self.inputs), self.targets)


class Turning(torch.optim.SGD):
    """Climbs from a certain step on."""

    taken = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.taken += 1
        for group in self.param_groups:
            for param in group["params"]:
                param.add_(param.grad, alpha=group["lr"] * (1 if self.taken > 300 else -1))


def test_a_loss_that_climbs_unsearched_lowers_the_ceiling_and_is_told() -> None:
    task = Task()
    optimizer = LineSearch(Turning(task.model.parameters(), lr=0.1))
    for _ in range(300):
        optimizer.step(task.loss)
    high = Trust.of(optimizer.param_groups[0]).ceiling(0.005)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(1200):
            optimizer.step(task.loss)
    watch = Trust.of(optimizer.param_groups[0])
    assert watch.alert
    assert watch.ceiling(0.005) < high
    assert sum("still about where it began" in str(one.message) for one in told) == 1


def test_a_dead_network_is_told_though_there_is_no_line_to_search() -> None:
    task = Task(bias=False)
    nn.init.constant_(task.model[0].bias, -100.0)
    optimizer = LineSearch(torch.optim.AdamW(task.model.parameters(), weight_decay=0.0))
    with pytest.warns(UserWarning, match="still about where it began"):
        for _ in range(1001):
            optimizer.step(task.loss)
    assert optimizer.param_groups[0]["searches"] == 0


def test_weights_that_begin_with_zeros_train_alike_from_any_rate() -> None:
    """Slowly: there is nothing that a step could be relative to."""
    task, ends = Task(), []
    for lr in (1e-6, 1e-3, 1.0):
        model = nn.Linear(10, 3)
        for param in model.parameters():
            nn.init.zeros_(param)

        def loss(model: nn.Module = model) -> Tensor:
            return nn.functional.cross_entropy(model(task.inputs), task.targets)

        optimizer = LineSearch(torch.optim.AdamW(model.parameters(), lr=lr))
        for _ in range(800):
            optimizer.step(loss)
        ends.append(loss().item())
    assert max(ends) < 1.01 * min(ends)
    assert max(ends) < 0.97 * math.log(3)


def relative_steps(optimizer: LineSearch, task: Task, scheduler: Any, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        before = nn.utils.parameters_to_vector(task.model.parameters()).detach().clone()
        optimizer.step(task.loss)
        scheduler.step()
        after = nn.utils.parameters_to_vector(task.model.parameters()).detach()
        found.append(float((after - before).norm() / before.norm()))
    return found


@pytest.mark.parametrize("wrapped_first", [True, False])
def test_no_schedule_takes_a_step_beyond_the_ceiling(wrapped_first: bool) -> None:
    """One that begins at a 25th of its peak: the peak is what counts as full."""
    task = Task()
    base = torch.optim.AdamW(task.model.parameters(), lr=1e-3)
    optimizer = LineSearch(base, search_prob=0.0) if wrapped_first else None
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer or base, max_lr=0.1, total_steps=100)
    optimizer = optimizer or LineSearch(base, search_prob=0.0)
    steps = relative_steps(optimizer, task, cycle, 99)
    assert max(steps) == pytest.approx(0.005, rel=1e-3)
    assert steps[-1] < 0.1 * max(steps)


def test_the_ceiling_fades_with_the_root_of_time() -> None:
    task = Task()
    base = torch.optim.SGD(task.model.parameters(), lr=0.1)
    optimizer = LineSearch(base, search_prob=0.0, full_steps=25)
    constant = torch.optim.lr_scheduler.ConstantLR(base, 1.0, 1)
    steps = relative_steps(optimizer, task, constant, 100)
    for t, step in enumerate(steps, start=1):
        assert step == pytest.approx(0.005 * min(1.0, math.sqrt(25 / t)), rel=1e-3)


@pytest.mark.parametrize("full_steps", [0, -1.0, math.nan])
def test_full_steps_must_be_positive(full_steps: float) -> None:
    with pytest.raises(ValueError, match="Invalid full_steps"):
        LineSearch(torch.optim.SGD(Task().model.parameters()), full_steps=full_steps)


@pytest.mark.parametrize("rho", [None, 0.0, -0.005, math.nan, math.inf])
def test_a_relative_step_must_be_a_length(rho: Any) -> None:
    with pytest.raises(ValueError, match=r"Invalid max_relative_step.*positive number such as"):
        LineSearch(torch.optim.SGD(Task().model.parameters()), max_relative_step=rho)


@pytest.mark.parametrize("name", ["search_prob", "max_relative_step", "full_steps"])
def test_options_of_the_line_do_not_belong_into_a_group(name: str) -> None:
    task = Task()
    optimizer = LineSearch(torch.optim.AdamW(task.model.parameters()))
    before = [each.detach().clone() for each in task.model.parameters()]
    optimizer.param_groups[0][name] = 0.1
    with pytest.raises(ValueError, match=f"holds {name},.*Give it when the optimizer is made"):
        optimizer.step(task.loss)
    assert all(map(torch.equal, before, task.model.parameters()))
    del optimizer.param_groups[0][name]
    optimizer.step(task.loss)


class Seeded(torch.optim.SGD):
    """Has an option of its own of a name that LineSearch has too."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.defaults["seed"] = self.param_groups[0]["seed"] = 3


def test_a_base_s_own_option_of_the_same_name_does() -> None:
    task = Task()
    optimizer = LineSearch(Seeded(task.model.parameters()))
    optimizer.step(task.loss)
    assert optimizer.param_groups[0]["seed"] == 3


def test_a_base_may_be_given_a_group_behind_the_search_s_back() -> None:
    task, more = Task(), nn.Parameter(torch.ones(2))
    optimizer = LineSearch(torch.optim.AdamW(task.model.parameters()))
    optimizer.base.add_param_group({"params": [more]})
    optimizer.step(lambda: task.loss() + more.square().sum())
    assert optimizer.param_groups[1]["steps"] == 1


def test_such_a_group_may_be_saved_before_any_step() -> None:
    task, more = Task(), nn.Parameter(torch.ones(2))
    optimizer = LineSearch(torch.optim.AdamW(task.model.parameters()))
    optimizer.base.add_param_group({"params": [more]})
    assert optimizer.state_dict()["param_groups"][1]["steps"] == 0


def test_a_base_may_load_a_bare_checkpoint_behind_the_search_s_back() -> None:
    task = Task()
    bare = torch.optim.AdamW(task.model.parameters()).state_dict()
    optimizer = LineSearch(torch.optim.AdamW(task.model.parameters()))
    optimizer.base.load_state_dict(bare)
    assert optimizer.state_dict()["param_groups"][0]["steps"] == 0
    optimizer.base.load_state_dict(bare)
    optimizer.step()  # without a gradient
    optimizer.base.load_state_dict(bare)
    optimizer.step(task.loss)
    assert optimizer.param_groups[0]["steps"] == 1


def test_the_modes_of_a_base_are_those_of_the_search() -> None:
    schedulefree = pytest.importorskip("schedulefree")
    task = Task()
    optimizer = LineSearch(schedulefree.AdamWScheduleFree(task.model.parameters()))
    optimizer.train()
    for _ in range(5):
        optimizer.step(task.loss)
    trained = [parameter.detach().clone() for parameter in task.model.parameters()]
    optimizer.eval()
    assert not torch.equal(trained[0], next(task.model.parameters()))
    optimizer.train()
    torch.testing.assert_close(trained, [p.detach() for p in task.model.parameters()])


def test_a_base_without_modes_gives_none() -> None:
    optimizer = LineSearch(torch.optim.SGD(Task().model.parameters()))
    assert not hasattr(optimizer, "eval")
    with pytest.raises(AttributeError, match="'LineSearch' object has no attribute 'trian'"):
        optimizer.trian()


def test_huge_losses_leave_the_watch_as_it_was() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = LineSearch(torch.optim.SGD([weight]))
    for height in (1e200, 1.0, 1e200):
        optimizer.step(lambda: weight.square().sum() + height)
    assert Trust.of(optimizer.param_groups[0]).losses == 1


def test_steps_of_zero_at_first_are_not_taken_for_lost() -> None:
    """RAdam begins with some, and Schedule-Free keeps a position that a lift would throw away."""
    schedulefree = pytest.importorskip("schedulefree")
    task = Task()
    optimizer = LineSearch(schedulefree.RAdamScheduleFree(task.model.parameters()))
    optimizer.base.train()
    for _ in range(300):
        loss = optimizer.step(task.loss)
    assert optimizer.param_groups[0]["lift"] == 1.0
    assert float(loss) < 0.5


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float32, 0.001), (torch.float64, 0.001), (torch.bfloat16, 0.005)]
)
def test_a_run_begins_with_a_step_that_its_weights_can_see(dtype: Any, expected: float) -> None:
    weight = nn.Parameter(torch.full((1000,), 1.0, dtype=dtype))
    optimizer = LineSearch(torch.optim.SGD([weight], lr=0.1))
    optimizer.step(lambda: weight.double().square().sum())
    assert optimizer._workspace is not None
    layout = optimizer._workspace.layout
    group, loss = optimizer.param_groups[0], torch.tensor(1.0)
    assert earned_ceiling(optimizer.options, group, loss, layout) == expected
    assert float(weight.detach().max()) < 1.0
