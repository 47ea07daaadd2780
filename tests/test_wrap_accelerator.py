"""LineSearch on the way of an accelerator, walked on the CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_accelerator import Looks, as_accelerator, assert_no_copy_outlives_a_step
from wrapped_run import Run, adamw, is_well

from cgq import LineSearch, join, side_by_side
from cgq.vectors.layout import Layout


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)


def seeded(run: Run, number: int) -> None:
    """The same draws on both ways; Python's and NumPy's are left out."""
    torch.manual_seed(number)
    x, y = run.inputs, run.targets
    run.optimizer.step(lambda: torch.nn.functional.mse_loss(run.model(x), y))


@pytest.mark.parametrize("rho", [0.005, 0.05])
@pytest.mark.parametrize("make", [adamw, sgd])
def test_the_same_steps(make: Any, rho: float, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Run(make, max_relative_step=rho, search_prob=0.5)
    searches = []
    for number in range(15):
        if number == 5:
            is_well(host.optimizer)
        seeded(host, number)
        searches.append(host.optimizer.last_search)
    as_accelerator(monkeypatch)
    other = Run(make, max_relative_step=rho, search_prob=0.5)
    for number, search in enumerate(searches):
        if number == 5:
            is_well(other.optimizer)
        seeded(other, number)
        found = other.optimizer.last_search
        assert (found is None) == (search is None)
        if found and search:
            assert found.trial_steps == pytest.approx(search.trial_steps, rel=1e-7)
            assert found.step_size == pytest.approx(search.step_size, rel=1e-7)
    torch.testing.assert_close(other.vector(), host.vector(), rtol=1e-7, atol=1e-9)
    mine, its = (run.optimizer.state_dict()["param_groups"][0] for run in (other, host))
    for name in ("step_size", "average", "steps", "losses", "recent_loss", "usual_share"):
        assert mine[name] == pytest.approx(its[name], rel=1e-6)


def test_no_look_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    # Adam counts its steps in tensors, on the host, and reads them; SGD reads nothing.
    run = Run(sgd, search_prob=0.5, max_relative_step=0.01)
    seeded(run, 0)
    run.optimizer.param_groups[0]["start_checks"] = 1  # which is one look more, once
    looks = Looks(monkeypatch)
    looked = {True: 0, False: 0}
    unread = False
    for number in range(1, 40):
        is_well(run.optimizer)
        looks.count = 0
        seeded(run, number)
        search = run.optimizer.last_search
        if search is None:
            # One is the look that found an update to climb.
            assert looks.count in (0, 1 + unread)
        else:
            assert looks.count == 1 + max(0, len(search.trial_steps) - 1) + unread
        looked[search is not None] += 1
        unread = not looks.count  # a look reads what was left unread
    assert min(looked.values()) >= 5


@pytest.mark.parametrize("search_prob", [0.0, 1.0])
def test_a_gradient_that_is_not_finite(search_prob: float, monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    run = Run(search_prob=search_prob)
    for _ in range(2):
        run.step()
    before, buffers = run.vector(), [b.clone() for b in run.model.buffers()]
    moments = [state["exp_avg"].clone() for state in run.base.state.values()]
    run.step({0: lambda loss: loss * math.nan})
    assert torch.equal(run.vector(), before)
    assert all(map(torch.equal, buffers, run.model.buffers()))
    assert int(run.group["skipped"]) == 1
    for old, state in zip(moments, run.base.state.values(), strict=True):
        # Without a look the base saw zeros; where a search looked, it is as it was.
        torch.testing.assert_close(state["exp_avg"], old if search_prob else 0.9 * old)
    run.step()
    assert run.vector().isfinite().all()
    assert not torch.equal(run.vector(), before)


class Sudden(torch.optim.SGD):
    """SGD that writes `update` over the first entry of its first parameter, where it is given."""

    update: float | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        if self.update is not None:
            self.param_groups[0]["params"][0].view(-1)[0] = self.update


@pytest.mark.parametrize("update", [math.inf, -math.inf, math.nan])
def test_an_update_that_is_not_finite(update: float, monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    run = Run(lambda params: Sudden(params, lr=0.1), search_prob=0.0)
    run.step()
    before, buffers = run.vector(), [b.clone() for b in run.model.buffers()]
    run.base.update = update
    run.step()
    assert torch.equal(run.vector(), before)
    assert all(map(torch.equal, buffers, run.model.buffers()))
    assert (int(run.group["skipped"]), float(run.group["step_size"])) == (1, 0.0)
    run.base.update = None
    run.step()
    assert not torch.equal(run.vector(), before)
    assert run.vector().isfinite().all()
    assert int(run.group["skipped"]) == 1


@pytest.mark.parametrize("worst", [math.inf, -math.inf, math.nan])
def test_a_loss_is_left_out_with_its_step(worst: float, monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    run = Run(sgd, search_prob=0.5)
    for _ in range(3):
        seeded(run, 0)
    monkeypatch.setattr(run.optimizer, "_is_due", lambda: False)
    told = run.optimizer.state_dict()["param_groups"][0]
    first = next(run.model.parameters())
    hook = first.register_hook(lambda grad: grad * worst)
    seeded(run, 1)  # the loss itself is finite
    hook.remove()
    now = run.optimizer.state_dict()["param_groups"][0]
    assert (now["losses"], now["recent_loss"]) == (told["losses"], told["recent_loss"])
    assert now["skipped"] == 1
    seeded(run, 2)
    assert run.optimizer.state_dict()["param_groups"][0]["losses"] == told["losses"] + 1


def test_no_update_is_a_step_of_no_length(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    run = Run(lambda params: torch.optim.SGD(params, lr=0.0), search_prob=0.0)
    before = run.vector()
    run.step()
    assert torch.equal(run.vector(), before)
    assert (int(run.group["skipped"]), float(run.group["step_size"])) == (0, 0.0)


@pytest.mark.parametrize("other", [torch.float32, torch.float64])
@pytest.mark.parametrize("one", [torch.bfloat16, torch.float32])
def test_the_same_steps_in_one_block_and_in_two(
    one: torch.dtype, other: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stepped() -> tuple[list[torch.Tensor], float]:
        torch.manual_seed(0)
        params = [torch.randn(50, 3).to(dtype).requires_grad_() for dtype in (one, other)]
        optimizer = LineSearch(torch.optim.SGD(params, lr=0.1), search_prob=0.0)
        for _ in range(5):
            optimizer.step(lambda: sum(p.double().pow(4).sum() for p in params))
        values = [param.detach() for param in params]
        return values, float(optimizer.param_groups[0]["step_size"])

    host, its = stepped()
    as_accelerator(monkeypatch)
    # Of bf16 the host rounds each product and the accelerator their sum.
    rtol = 0.01 if one is torch.bfloat16 else 1e-6
    found, mine = stepped()
    torch.testing.assert_close(found, host, rtol=rtol, atol=1e-6)
    assert mine == pytest.approx(its, rel=rtol)


def test_no_copy_of_the_gradient_outlives_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    run = Run(sgd, search_prob=1.0)
    seeded(run, 0)
    assert_no_copy_outlives_a_step(lambda: seeded(run, 1), monkeypatch)
    assert run.optimizer.param_groups[0]["steps"] == 7


def test_no_vector_is_made_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    run = Run(sgd, search_prob=0.0)
    seeded(run, 0)
    before = run.vector()
    monkeypatch.setattr(Layout, "_buffer", lambda *args: pytest.fail("a new vector"))
    seeded(run, 1)
    assert not torch.equal(run.vector(), before)


@pytest.mark.parametrize("make", [adamw, sgd])
@pytest.mark.parametrize("search_prob", [0.0, 0.5, 1.0])
def test_the_same_steps_in_joined_memory(
    make: Any, search_prob: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_accelerator(monkeypatch)
    apart, joined = Run(make, search_prob=search_prob), Run(make, search_prob=search_prob)
    params = list(joined.model.parameters())
    join(params)
    places = side_by_side(params)
    assert places is not None

    def closure(backward: bool) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(joined.model(joined.inputs), joined.targets)
        if backward:
            loss.backward()
            for param, place in zip(params, places, strict=True):
                param.grad = place.copy_(param.grad)
        return loss.detach() * (math.nan if number == 7 else 1.0)

    for number in range(12):
        if number == 3:
            is_well(apart.optimizer)
            is_well(joined.optimizer)
        if number == 7:
            apart.step({0: lambda loss: loss * math.nan})
        else:
            seeded(apart, number)
        torch.manual_seed(number)
        joined.optimizer.step(closure)
        torch.testing.assert_close(joined.vector(), apart.vector(), rtol=1e-9, atol=1e-11)
    assert int(joined.group["skipped"]) == 1


def test_a_loss_is_the_callers_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    recent = []
    for way in ("host", "accelerator"):
        if way == "accelerator":
            as_accelerator(monkeypatch)
        weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = LineSearch(torch.optim.SGD([weight], lr=0.1), search_prob=0.5)
        is_well(optimizer)
        for _ in range(8):
            optimizer.step(lambda weight=weight: weight.square().sum()).mul_(100.0)
        recent.append(optimizer.state_dict()["param_groups"][0]["recent_loss"])
    assert recent[0] < 3.0
    assert recent[1] == pytest.approx(recent[0])


def test_a_number_beyond_the_weights_range_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = LineSearch(torch.optim.SGD([weight], lr=0.1), search_prob=0.0)

    def closure(backward: bool) -> float:
        if backward:
            weight.square().sum().backward()
        return 1e39

    optimizer.step(closure)
    assert not optimizer.state_dict()["param_groups"][0]["skipped"]
    assert (weight < 1.0).all()


def test_an_empty_parameter_hides_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    empty, weight = torch.nn.Parameter(torch.zeros(0)), torch.nn.Parameter(torch.ones(4))
    base = torch.optim.Adam([empty, weight], lr=0.1)
    optimizer = LineSearch(base, search_prob=0.0)
    for factor in (1.0, math.nan, 1.0):
        optimizer.step(lambda factor=factor: factor * (weight.square().sum() + empty.sum()))
    assert base.state[weight]["exp_avg"].isfinite().all()
    assert optimizer.state_dict()["param_groups"][0]["skipped"] == 1


def test_a_probe_that_gives_parameters_other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Climber(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for param in self.param_groups[0]["params"]:
                param.add_(param.grad, alpha=0.1)

    as_accelerator(monkeypatch)
    params = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
    join(params)
    optimizer = LineSearch(Climber(params, lr=0.1), max_relative_step=0.005, search_prob=1.0)
    optimizer.param_groups[0]["average"] = 0.5

    def closure(backward: bool) -> torch.Tensor:
        loss = torch.stack([param.square().sum() for param in params]).sum()
        if backward:
            loss.backward()
        else:
            for param in params:
                param.data = param.data.clone()
        return loss.detach()

    optimizer.step(closure)
    # Nothing to search along a climb: half of the ceiling, from where the step began.
    torch.testing.assert_close(torch.stack(list(params)), torch.full((2, 4), 1.0025))


def test_a_new_group_loses_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    weight, other = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = LineSearch(torch.optim.SGD([weight], lr=0.1), search_prob=0.001)
    is_well(optimizer)
    for _ in range(4):
        optimizer.step(lambda: weight.square().sum())
    optimizer.add_param_group({"params": [other]})
    optimizer.step(lambda: weight.square().sum() + other.square().sum())
    assert optimizer.state_dict()["param_groups"][0]["losses"] == 5
