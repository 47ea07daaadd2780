"""A base that is recorded with the step around it: when it is, when not, and nothing is lost."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from typing import Any

import pytest
import torch
from recorded_run import (
    Case,
    Run,
    always_searched,
    are_recorded,
    assert_same,
    resumed,
    searched_now_and_then,
    wrapped,
)
from tape import Taped
from test_recorded_searches import LATER
from test_recording import Again, pair
from torch import Tensor, nn
from torch.optim import SGD, AdamW, RMSprop
from torch.optim.optimizer import register_optimizer_step_pre_hook

import cgq.rules.scalars
from cgq import LineSearch
from cgq.engine.recordable import Fixed

BASES = {
    "sgd": Case(wrapped(SGD, momentum=0.9, nesterov=True), joined=True),
    "adamw": Case(wrapped(AdamW, capturable=True), joined=True),
    "amsgrad": Case(wrapped(AdamW, capturable=True, amsgrad=True), joined=True),
    "rmsprop": Case(wrapped(RMSprop, capturable=True, momentum=0.5), joined=True),
}


@pytest.fixture(autouse=True)
def _capturable_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no graphs but ours."""
    for name in ("adam", "adamw", "rmsprop"):  # AdamW is an Adam in newer versions of torch
        monkeypatch.setattr(
            import_module(f"torch.optim.{name}"),
            "_get_capturable_supported_devices",
            lambda supports_xla=True: ["cpu", "cuda"],
            raising=False,
        )


@pytest.fixture(params=BASES)
def case(request: pytest.FixtureRequest) -> Case:
    return BASES[request.param]


def taped(case: Case, patch: pytest.MonkeyPatch) -> tuple[Run, Run]:
    """A run whose kernels are launched one by one, and one that is recorded blindly."""
    return pair(case, patch, Taped)


def stepped(*runs: Run, steps: int = 30, each: Callable[[Run, int], object] | None = None) -> None:
    """A third of the batches is searched."""
    for number in range(steps):
        for run in runs:
            run.optimizer._is_due = lambda number=number: number % 3 == 0
            if each is not None:
                each(run, number)
            run.step()


def is_recorded(run: Run) -> bool:
    recordings = run.optimizer._workspace.of_base
    return are_recorded([recordings.whole, recordings.stepping, recordings.keeping])


def state_of(run: Run) -> dict[int, dict[str, Any]]:
    state = run.optimizer.base.state
    return {
        place: {name: value.clone() for name, value in state[param].items()}
        for place, param in enumerate(run.params)
        if param in state
    }


def test_the_same_bits(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = taped(case, monkeypatch)
    searched_now_and_then(plain, recorded, LATER)
    assert is_recorded(recorded)


def test_the_base_is_not_called_where_it_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = taped(BASES["sgd"], monkeypatch)[1]
    calls = []
    step = SGD.step
    monkeypatch.setattr(SGD, "step", lambda self: calls.append(step(self)))
    monkeypatch.setattr(run.optimizer, "_is_due", lambda: False)
    for _ in range(20):
        run.step()
    assert len(calls) == 2 + 1 + 1  # too seldom, as work, captured


def options_change(run: Run, number: int) -> None:
    if number == 15:
        group = run.optimizer.param_groups[0]
        group["weight_decay"], group["maximize"] = 0.1, not group["maximize"]


def rate_changes(run: Run, number: int) -> None:
    if number == 15:
        run.optimizer.param_groups[0]["lr"] *= 0.5


def lift_changes(run: Run, number: int) -> None:
    run.optimizer.param_groups[0]["lift"] = 1.0 if number < 15 else 4.0


def state_is_loaded(run: Run, number: int) -> None:
    """Into the base, behind our back: its tensors are others then."""
    if number == 15:
        run.optimizer.base.load_state_dict(deepcopy(run.optimizer.state_dict()))


def state_is_replaced(run: Run, number: int) -> None:
    if number == 15:
        for entry in run.optimizer.base.state.values():
            entry.update({name: 0.5 * value for name, value in entry.items()})


def state_moves(run: Run, number: int) -> None:
    """The same tensors in other memory."""
    if number == 15:
        for entry in run.optimizer.base.state.values():
            for value in entry.values():
                value.data = value.data.clone()


def state_has_other_names(run: Run, number: int) -> None:
    """The same memory in other tensors."""
    if number == 15:
        for entry in run.optimizer.base.state.values():
            entry.update({name: value.detach() for name, value in entry.items()})


def state_comes_back(run: Run, number: int) -> None:
    """What is loaded from a dictionary of live tensors are those tensors."""
    base = run.optimizer.base
    if number == 14:
        run.live = base.state_dict()  # type: ignore[attr-defined]
        base.load_state_dict(deepcopy(run.live))  # type: ignore[attr-defined]
    elif number == 16:
        base.load_state_dict(run.live)  # type: ignore[attr-defined]


def parameters_move(run: Run, number: int) -> None:
    if number == 15:
        for param in run.params:
            param.data = param.data.clone()


@pytest.mark.parametrize(
    "change",
    [
        options_change,
        rate_changes,
        lift_changes,
        state_is_loaded,
        state_is_replaced,
        state_moves,
        state_has_other_names,
        state_comes_back,
        parameters_move,
    ],
)
def test_what_changes_is_recorded_anew(
    case: Case, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, recorded = taped(case, monkeypatch)
    stepped(plain, recorded, steps=15, each=change)
    assert is_recorded(recorded)
    stepped(plain, recorded, steps=2, each=lambda run, number: change(run, number + 15))
    for run in (plain, recorded):
        raising_search(run)
    assert_same(recorded.facts(), plain.facts())
    stepped(plain, recorded, steps=60)
    assert_same(recorded.facts(), plain.facts())
    assert is_recorded(recorded)


def test_a_parameter_that_goes_to_another_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_groups(first: list[Tensor], second: list[Tensor]) -> LineSearch:
        groups = [{"params": first, "lr": 0.01}, {"params": second, "lr": 0.001}]
        return LineSearch(SGD(groups, momentum=0.9), search_prob=0.2)

    def moves(run: Run, number: int) -> None:
        if number == 15:
            first, second = run.optimizer.param_groups
            first["params"].append(second["params"].pop(0))

    plain, recorded = taped(Case(two_groups, joined=True), monkeypatch)
    stepped(plain, recorded, steps=40, each=moves)
    assert_same(recorded.facts(), plain.facts())
    assert is_recorded(recorded)


def raising_search(run: Run) -> None:
    run.optimizer._is_due = lambda: True

    def closure(backward: bool) -> Tensor:
        if not backward:
            raise KeyError
        loss = sum((param**2).sum() for param in run.params if param.requires_grad)
        loss.backward()
        for param, place in zip(run.params, run.places, strict=True):
            if param.grad is not None:
                param.grad = place.copy_(param.grad)
        return loss.detach()

    with pytest.raises(KeyError):
        run.optimizer.step(closure)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 20])
def test_a_search_that_raises_leaves_the_bases_state(
    case: Case, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its step and the copies are recorded, when they first are, and after that."""
    run = taped(case, monkeypatch)[1]
    always_searched(run)
    for _ in range(steps):
        run.step()
    before = run.facts()
    raising_search(run)
    after = run.facts()
    torch.testing.assert_close(after["model"], before["model"], rtol=0, atol=0)
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)


def test_a_search_that_raises_leaves_no_state_that_is_new(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a layer that is trained from now on."""
    run = taped(case, monkeypatch)[1]
    last = run.params[-1]
    del run.optimizer.base.state[last]
    last.requires_grad_(False)
    last.grad = None
    run.places = None
    always_searched(run)
    for _ in range(8):
        run.step()
    last.requires_grad_(True)
    run.places = [torch.zeros_like(param) for param in run.params]
    before = state_of(run)
    raising_search(run)
    assert state_of(run).keys() == before.keys()
    assert last not in run.optimizer.base.state


def test_hooks_of_the_base_are_called_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    run = taped(BASES["sgd"], monkeypatch)[1]
    stepped(run, steps=15)
    assert is_recorded(run)
    called = []
    run.optimizer.base.register_step_post_hook(lambda *_: called.append(1))
    stepped(run, steps=12)
    assert len(called) == 12


def test_hooks_of_all_optimizers_are_called_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    run = taped(BASES["sgd"], monkeypatch)[1]
    called = []
    hook = register_optimizer_step_pre_hook(lambda *_: called.append(1))
    try:
        stepped(run, steps=12)
    finally:
        hook.remove()
    assert len(called) >= 2 * 12  # ours and the base's


def test_a_step_that_was_replaced_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """As schedulers do too."""
    run = taped(BASES["adamw"], monkeypatch)[1]
    base, calls = run.optimizer.base, []
    step = base.step
    base.step = lambda: calls.append(step())
    stepped(run, steps=20)
    assert len(calls) == 20


class Counting(AdamW):
    """Does more than its kernels."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        return super().step(closure)


class Inside(torch.optim.Optimizer):
    """Shares the groups of the one that it calls."""

    def __init__(self, params: Any, lr: float) -> None:
        self.inner, self.calls = AdamW(params, lr=lr, capturable=True), 0
        super().__init__(self.inner.param_groups, {})
        self.param_groups = self.inner.param_groups

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        return self.inner.step(closure)


@pytest.mark.parametrize(
    "make", [wrapped(Counting, capturable=True), wrapped(Inside)], ids=["heir", "wrapper"]
)
def test_who_is_not_torchs_own_is_called_in_each_step(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = taped(Case(make, joined=True), monkeypatch)[1]
    stepped(run, steps=20)
    assert run.optimizer.base.calls == 21


def test_a_capture_that_fails_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Again()
    recorder.fails = True
    plain, recorded = pair(BASES["sgd"], monkeypatch, lambda layout: recorder)
    stepped(plain, recorded)
    assert_same(recorded.facts(), plain.facts())
    assert not recorded.base_is_recorded


def test_a_base_that_raises_leaves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the step in which its kernels run for the first time as those of a recording."""
    run = taped(BASES["sgd"], monkeypatch)[1]
    monkeypatch.setattr(run.optimizer, "_is_due", lambda: False)
    for _ in range(2):
        run.step()
    assert run.optimizer._workspace.of_base.whole._times == 2  # the next one is the recording's
    before = [param.detach().clone() for param in run.params]
    step = SGD.step

    def failing(self: SGD) -> None:
        step(self)
        raise KeyError

    monkeypatch.setattr(SGD, "step", failing)
    with pytest.raises(KeyError):
        run.step()
    assert all(map(torch.equal, run.params, before))


def test_resumed_is_continued(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    run = taped(case, monkeypatch)[1]
    stepped(run, steps=15)
    other = resumed(run, case)
    stepped(run, other)
    assert_same(other.facts(), run.facts())
    assert is_recorded(other)


def test_which_bases_can_be_recorded() -> None:
    weights = [nn.Parameter(torch.ones(3))]

    def fixed(kind: Any, **options: Any) -> Fixed | None:
        return Fixed.of(kind(weights, **{"lr": 0.1, **options}))

    assert fixed(SGD) is not None
    assert fixed(AdamW) is None  # it counts its steps on the host
    assert fixed(AdamW, capturable=True) is not None
    assert fixed(torch.optim.Adagrad) is None
    assert fixed(type("OfTheirs", (SGD,), {})) is None
    assert fixed(SGD, lr=torch.tensor(0.1), foreach=False) is None  # who writes to it does not tell
    assert fixed(AdamW, capturable=True, betas=(torch.tensor(0.9), torch.tensor(0.99))) is None


@pytest.mark.parametrize("entry", [{"step": 3}, {"step": torch.tensor(1.0)}, 3])
def test_state_that_a_recording_would_not_change(entry: Any) -> None:
    """Numbers, and tensors on the host."""
    weight = nn.Parameter(torch.ones(3))
    base = AdamW([weight], capturable=True)
    base.state[weight] = entry
    assert Fixed.of(base) is None


def test_state_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And again where it is another, is elsewhere or has more to it."""
    weights = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    base = SGD(weights, lr=0.1, momentum=0.9)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    base.step()
    devices = []
    monkeypatch.setattr(cgq.rules.scalars, "is_host", lambda device: devices.append(device))
    first = Fixed.of(base)
    assert first is not None
    assert len(devices) == 2
    base.param_groups[0]["lr"] = 0.2
    again = Fixed.of(base, first)
    assert again is not None
    assert again.settings[0] == 0.2
    assert again[1:] == first[1:]
    assert len(devices) == 2

    entry = base.state[weights[0]]
    entry["momentum_buffer"].data = entry["momentum_buffer"].data.clone()
    moved = Fixed.of(base, first)
    assert moved is not None
    assert moved.places != first.places
    assert len(devices) == 4
    entry["momentum_buffer"] = entry["momentum_buffer"].detach()
    other = Fixed.of(base, moved)
    assert other is not None
    assert other.tensors[0] is entry["momentum_buffer"]
    assert len(devices) == 6
    entry["count"] = 3
    assert Fixed.of(base, other) is None


def test_what_is_given_up_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the state that a load has replaced, if nothing is recorded any more."""
    run = taped(BASES["adamw"], monkeypatch)[1]
    stepped(run, steps=15)
    base = run.optimizer.base
    old = [weakref.ref(value) for entry in base.state.values() for value in entry.values()]
    base.load_state_dict(deepcopy(base.state_dict()))
    base.register_step_post_hook(lambda *_: None)
    stepped(run, steps=5)
    gc.collect()
    assert not any(ref() is not None for ref in old)


def test_what_is_written_to_is_held(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until something else is recorded: nobody else may get that memory."""
    run = taped(case, monkeypatch)[1]
    stepped(run, steps=15)
    of_base, base = run.optimizer._workspace.of_base, run.optimizer.base
    state = [value for entry in base.state.values() for value in entry.values()]
    base.load_state_dict(deepcopy(base.state_dict()))
    stepped(run, steps=1)
    for held in (of_base.of_whole, of_base.of_stepping):
        assert all(mine is its for mine, its in zip(held, state, strict=True))


def test_gradients_that_move_ask_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that backward() makes anew: two addresses tell."""
    asked = []
    monkeypatch.setattr(Fixed, "of", classmethod(lambda cls, base, last: asked.append(base)))
    run = taped(BASES["sgd"], monkeypatch)[1]
    held = []
    for _ in range(10):
        run.places = [torch.zeros_like(param) for param in run.params]
        held.append(run.places)
        run.step()
    assert not asked


def test_a_lost_batch_is_lost(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = taped(case, monkeypatch)
    stepped(plain, recorded, steps=15)
    for run in (plain, recorded):
        run.optimizer._is_due = lambda: False
        run.step(math.nan)
    assert_same(recorded.facts(), plain.facts())
    assert int(recorded.optimizer.param_groups[0]["skipped"]) == 1
