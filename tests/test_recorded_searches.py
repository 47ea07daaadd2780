"""Recorded searches without CUDA: the same bits, and as few looks."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorded_run import (
    BAD,
    CASES,
    Case,
    Run,
    always_searched,
    are_recorded,
    assert_same,
    assert_same_search,
    cgq_of,
    resumed,
    searched,
    searched_now_and_then,
    with_rates_that_change,
    wrapped,
)
from test_accelerator import Looks
from test_recording import Again, pair

from cgq import least_squares
from cgq.vectors.layout import Buffer
from cgq.vectors.recording import REPEATS, Recording

SEARCHED = {
    **{name: case for name, case in CASES.items() if name != "never searched"},
    "all": Case(cgq_of(search_prob=1.0)),
    "all joined": Case(cgq_of(search_prob=1.0), joined=True),
    "all relative": Case(cgq_of(search_prob=1.0, max_relative_step=0.01, lr=10.0)),
    "all smoothed": Case(cgq_of(search_prob=1.0, smoothing=0.5)),
    "probe": Case(cgq_of(search_prob=1.0, max_relative_step=0.05, lr=math.inf, probe=0.01)),
    "too long": Case(cgq_of(search_prob=1.0, lr=30.0, probe=20.0)),
    "least squares": Case(cgq_of(search_prob=1.0, fit=least_squares)),
    "one fit": Case(cgq_of(search_prob=1.0, max_fits=1)),
}
LATER = {number + 20: factor for number, factor in BAD.items()}


@pytest.mark.parametrize("name", SEARCHED)
def test_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searched(*pair(SEARCHED[name], monkeypatch), LATER)


@pytest.mark.parametrize("name", ["rule", "constant", "relative", "two groups", "adamw", "sgd"])
def test_the_same_bits_with_steps_in_between(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searched_now_and_then(*pair(SEARCHED[name], monkeypatch), LATER)


@pytest.mark.parametrize("name", ["all", "all relative", "two groups", "adamw"])
def test_a_rate_that_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(SEARCHED[name], monkeypatch)
    always_searched(plain, recorded)
    with_rates_that_change(plain, recorded)
    assert are_recorded(recorded.of_searches)


@pytest.mark.parametrize("name", ["all", "all joined", "adamw"])
def test_parameters_that_move_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(SEARCHED[name], monkeypatch)
    always_searched(plain, recorded)
    for number in range(40):
        for run in (plain, recorded):
            if number in (10, 15):
                for param in run.params:
                    param.data = param.data.clone()
            run.step()
    assert_same(recorded.facts(), plain.facts())
    assert are_recorded(recorded.of_searches)


@pytest.mark.parametrize("name", ["all", "all smoothed", "relative", "adamw", "sgd"])
def test_resumed_is_continued(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pair(SEARCHED[name], monkeypatch)[1]
    always_searched(run)
    for _ in range(15):
        run.step()
    assert are_recorded(run.of_searches)
    other = resumed(run, SEARCHED[name])
    always_searched(other)
    for _ in range(15):
        for each in (run, other):
            each.step()
        assert_same_search(run, other)
    assert_same(other.facts(), run.facts())


@pytest.mark.parametrize("name", ["all", "all smoothed", "all relative", "adamw"])
def test_one_look(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a recording: at all numbers at once, and at trials that nobody foresaw."""
    plain, recorded = pair(SEARCHED[name], monkeypatch)
    always_searched(plain, recorded)
    for number in range(20):
        counts = []
        for run in (plain, recorded):
            with monkeypatch.context() as patch:
                looks = Looks(patch)
                run.step()
            counts.append(looks.count)
        assert number < 10 or counts[0] == counts[1]


def raising_first(run: Run, fails: Callable[[int], bool]) -> None:
    """Let each measurement of which `fails` says so raise."""
    step, calls = run.optimizer.step, [0]

    def guarded(closure: Any) -> Any:
        def passing(backward: bool) -> Any:
            loss = closure(backward)
            if not backward:
                calls[0] += 1
                if fails(calls[0]):
                    raise ValueError("too far")
            return loss

        return step(passing)

    run.optimizer.step = guarded


@pytest.mark.filterwarnings("ignore:A trial of the line search raised")
@pytest.mark.parametrize("name", ["all", "all joined", "all relative", "adamw", "adamw joined"])
@pytest.mark.parametrize("every", [3, 4, 7])
def test_a_trial_that_raises(name: str, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(SEARCHED[name], monkeypatch)
    always_searched(plain, recorded)
    for run in (plain, recorded):
        raising_first(run, lambda call: call > 20 and call % every == 0)
    for _ in range(30):
        raised = []
        for run in (plain, recorded):
            before = [param.detach().clone() for param in run.params]
            try:
                run.step()
                raised.append(False)
            except ValueError:
                raised.append(True)
                assert all(map(torch.equal, run.params, before))
        assert raised[0] == raised[1]
        assert_same_search(plain, recorded)
    assert_same(recorded.facts(), plain.facts())
    assert are_recorded(recorded.of_searches)


def test_a_capture_that_fails_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all", "all smoothed", "adamw"):
        for survivors in range(4):
            left = [survivors]

            class Failing(Again):
                def captured(self, work: Any, left: list[int] = left) -> Any:
                    left[0] -= 1
                    self.fails = left[0] < 0
                    return super().captured(work)

            plain, recorded = pair(SEARCHED[name], monkeypatch, lambda layout, f=Failing: f())
            always_searched(plain, recorded)
            for _ in range(20):
                for run in (plain, recorded):
                    run.step()
                assert_same_search(plain, recorded)
            assert_same(recorded.facts(), plain.facts())


class Unexecuted(Again):
    """Fails once the work is captured, of which nothing is done."""

    run: Run

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        workspace = self.run.optimizer._workspace
        buffers = [value for value in vars(workspace).values() if isinstance(value, Buffer)]
        written = [block for buffer in buffers for block in buffer.blocks]
        written += [param.data for param in self.run.params]
        written += [param.grad for param in self.run.params if param.grad is not None]
        for value in vars(workspace).values():
            if isinstance(value, Recording) and value._numbers is not None:
                numbers = value._numbers._inputs, value._numbers._outputs
                written += [tensor for tensor in numbers if tensor is not None]
        state = [value for entry in self.run.optimizer.state.values() for value in entry.values()]
        written += [value for value in state if isinstance(value, torch.Tensor)]
        of_base = getattr(workspace, "of_base", None)
        written += [] if of_base is None else of_base.copies
        before = [tensor.clone() for tensor in written]
        for tensor in written:
            tensor.fill_(math.nan)  # what it reads now is nobody's
        work()
        torch._foreach_copy_(written, before)
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("name", ["all", "all joined", "two groups", "adamw", "sgd", "sgd joined"])
def test_a_capture_that_fails_at_last_costs_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Unexecuted()
    plain, recorded = pair(SEARCHED[name], monkeypatch, lambda layout: recorder)
    recorder.run = recorded
    for number in range(40):
        for run in (plain, recorded):
            due = number % 10 < 6
            run.optimizer._is_due = lambda due=due: due
            if number % 7 == 0:
                run.optimizer.state_dict()  # from where it goes on without the last step
            run.step()
        assert_same_search(plain, recorded)
    assert_same(recorded.facts(), plain.facts())


def test_a_rule_of_the_users_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(g: Any, h: Any, p: Any) -> Any:
        return 0.5 if float(g @ g) > 0.0 else 0.0

    run = pair(Case(cgq_of(momentum=halved, search_prob=1.0)), monkeypatch)[1]
    for _ in range(12):
        run.step()
    assert not any(recording._numbers for recording in run.of_searches)


def test_clipped_gradients_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in (Case(cgq_of(search_prob=1.0)), Case(wrapped(torch.optim.SGD))):
        plain, recorded = pair(case, monkeypatch)
        always_searched(plain, recorded)
        for _ in range(12):
            for run in (plain, recorded):
                inputs = run.inputs[run.number % 64]
                run.number += 1

                def closure(backward: bool, run: Run = run, inputs: Any = inputs) -> Any:
                    loss = (run.model(inputs) - inputs.flip(-1)).square().mean()
                    if backward:
                        loss.backward()
                        with run.optimizer.clipping():
                            torch.nn.utils.clip_grad_norm_(run.params, 0.1)
                    return loss.detach()

                run.optimizer.step(closure)
            assert_same_search(plain, recorded)
        assert_same(recorded.facts(), plain.facts())
        assert recorded.optimizer._workspace.outset._numbers is None


def test_a_recording_goes_with_its_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the garbage collector: device memory is not to wait for it."""
    for name in ("all", "all relative", "adamw"):
        recorder = Again()
        recorder.captured = lambda work: lambda: None  # type: ignore[method-assign]
        run = pair(SEARCHED[name], monkeypatch, lambda layout, made=recorder: made)[1]
        always_searched(run)
        gc.collect()
        gc.disable()
        try:
            for _ in range(3 * REPEATS):
                run.step()
            made = [weakref.ref(recording._numbers) for recording in run.of_searches]
            made += map(weakref.ref, run.optimizer._workspace.scratch.blocks)
            assert all(ref() is not None for ref in made)
            run.optimizer._forget_vectors()
            assert all(ref() is None for ref in made[:-1])
        finally:
            gc.enable()
