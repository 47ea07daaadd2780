"""A base that is recorded with the step around it: when it is, when not, and nothing is lost."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from recorded_run import (
    CASES,
    Case,
    Run,
    always_searched,
    are_recorded,
    assert_same,
    resumed,
    searched_now_and_then,
    wrapped,
)
from test_recorded_searches import LATER
from test_recording import Again, pair
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cgq.engine.recorded_base import Fixed

JOINED = CASES["sgd joined"]


def stepped(plain: Run, recorded: Run, steps: int = 12) -> None:
    for _ in range(steps):
        for run in (plain, recorded):
            run.step()
    assert_same(recorded.facts(), plain.facts())


def test_a_base_is_recorded_where_gradients_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(JOINED, monkeypatch)
    calls = []
    step = recorded.optimizer.base.step
    recorded.optimizer.base.step = lambda: calls.append(step())
    monkeypatch.setattr(plain.optimizer, "_is_due", lambda: False)
    monkeypatch.setattr(recorded.optimizer, "_is_due", lambda: False)
    stepped(plain, recorded)
    assert recorded.base_is_recorded
    assert recorded.optimizer._workspace.whole._recorder.replays == 12 - 3
    assert len(calls) == 12  # this recorder does the work anew


def test_hooks_of_the_base_are_called_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    run = pair(JOINED, monkeypatch)[1]
    called = []
    run.optimizer.base.register_step_post_hook(lambda *_: called.append(1))
    for _ in range(12):
        run.step()
    assert len(called) == 12
    assert not run.base_is_recorded


def test_hooks_of_all_optimizers_are_called_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    run = pair(JOINED, monkeypatch)[1]
    called = []
    hook = register_optimizer_step_pre_hook(lambda *_: called.append(1))
    try:
        for _ in range(12):
            run.step()
    finally:
        hook.remove()
    assert len(called) >= 12
    assert not run.base_is_recorded


def options_change(run: Run, number: int) -> None:
    group = run.optimizer.param_groups[0]
    group["momentum"], group["weight_decay"] = (0.9, 0.0) if number < 15 else (0.5, 0.1)


def state_is_loaded(run: Run, number: int) -> None:
    """Into the base, behind our back: its tensors are others then."""
    if number == 15:
        run.optimizer.base.load_state_dict(deepcopy(run.optimizer.state_dict()))


def state_is_replaced(run: Run, number: int) -> None:
    if number == 15:
        for entry in run.optimizer.base.state.values():
            entry["momentum_buffer"] = 0.5 * entry["momentum_buffer"]


@pytest.mark.parametrize("change", [options_change, state_is_loaded, state_is_replaced])
def test_what_changes_is_recorded_anew(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(JOINED, monkeypatch)
    keys = []
    for number in range(40):
        for run in (plain, recorded):
            change(run, number)
            run.step()
        keys.append(recorded.optimizer._workspace.whole._key)
    assert_same(recorded.facts(), plain.facts())
    assert recorded.base_is_recorded
    assert keys[14] is not None
    assert keys[14] != keys[-1]


def test_resumed_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    run = pair(JOINED, monkeypatch)[1]
    for _ in range(15):
        run.step()
    assert run.base_is_recorded
    other = resumed(run, JOINED)
    stepped(run, other)
    assert other.base_is_recorded


def test_a_capture_that_fails_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Again()
    recorder.fails = True
    plain, recorded = pair(JOINED, monkeypatch, lambda layout: recorder)
    stepped(plain, recorded, 20)
    assert not recorded.base_is_recorded


def test_a_base_that_raises_leaves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the step in which its kernels run for the first time as those of a recording."""
    run = pair(JOINED, monkeypatch)[1]
    monkeypatch.setattr(run.optimizer, "_is_due", lambda: False)
    for _ in range(2):
        run.step()
    whole = run.optimizer._workspace.whole
    assert whole._times == 2  # the next one will be the recording's
    before = [param.detach().clone() for param in run.params]
    step = run.optimizer.base.step

    def failing() -> None:
        step()
        raise KeyError

    run.optimizer.base.step = failing
    with pytest.raises(KeyError):
        run.step()
    assert all(map(torch.equal, run.params, before))


def test_searched_steps_replay_the_base_and_the_copies_of_its_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, recorded = pair(JOINED, monkeypatch)
    searched_now_and_then(plain, recorded, LATER)
    workspace = recorded.optimizer._workspace
    assert are_recorded([workspace.whole, workspace.stepping, workspace.keeping])


@pytest.mark.parametrize("steps", [1, 2, 3, 6, 20])
def test_a_search_that_raises_leaves_the_bases_state(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its step and the copies are recorded, when they first are, and after that."""
    run = pair(JOINED, monkeypatch)[1]
    always_searched(run)
    for _ in range(steps):
        run.step()
    before = run.facts()

    def raising(backward: bool) -> Tensor:
        if not backward:
            raise KeyError
        loss = sum((param**2).sum() for param in run.params)
        loss.backward()
        for param, place in zip(run.params, run.places, strict=True):
            param.grad = place.copy_(param.grad)
        return loss.detach()

    with pytest.raises(KeyError):
        run.optimizer.step(raising)
    after = run.facts()
    torch.testing.assert_close(after["model"], before["model"], rtol=0, atol=0)
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)


def test_which_bases_can_be_recorded() -> None:
    weights = [torch.nn.Parameter(torch.ones(3))]

    def fixed(kind: Any, **options: Any) -> Fixed | None:
        return Fixed.of(kind(weights, lr=0.1, **options))

    assert fixed(torch.optim.SGD) is not None
    assert fixed(torch.optim.AdamW) is None  # it counts its steps on the host
    assert fixed(torch.optim.AdamW, capturable=True) is not None
    assert fixed(torch.optim.Adagrad) is None
    assert fixed(type("OfTheirs", (torch.optim.SGD,), {})) is None
    tensor_rate = torch.optim.SGD(weights, lr=torch.tensor(0.1), foreach=False)
    assert Fixed.of(tensor_rate) is None  # whoever writes to it does not tell


def test_state_on_the_host_is_none_that_a_recording_changes() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    base = torch.optim.AdamW([weight], capturable=True)
    base.state[weight] = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(3)}
    assert Fixed.of(base) is None


def test_what_a_recording_writes_to_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    run = pair(Case(wrapped(torch.optim.SGD, momentum=0.9), joined=True), monkeypatch)[1]
    for _ in range(15):
        run.step()
    held: list[Tensor] = run.optimizer._workspace.of_whole
    state = [entry["momentum_buffer"] for entry in run.optimizer.base.state.values()]
    assert len(held) == len(state)
    assert all(mine is its for mine, its in zip(held, state, strict=True))
