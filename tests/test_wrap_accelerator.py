"""LineSearch on the way of an accelerator, walked on the CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_accelerator import Looks, as_accelerator, assert_no_copy_outlives_a_step
from wrapped_run import Run, adamw, is_well


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
        unread = search is None
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


@pytest.mark.parametrize("search_prob", [0.0, 1.0])
def test_no_copy_of_the_gradient_outlives_its_step(
    search_prob: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_accelerator(monkeypatch)
    run = Run(sgd, search_prob=search_prob)
    seeded(run, 0)
    assert_no_copy_outlives_a_step(lambda: seeded(run, 1), monkeypatch)
    assert run.optimizer.param_groups[0]["steps"] == 7
