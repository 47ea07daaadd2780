"""Recorded steps without CUDA: what is captured when, and that the numbers find their way."""

from __future__ import annotations

import copy
import gc
import pickle
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
    assert_same,
    cgq_of,
    record_with,
    resumed,
    with_rates_that_change,
    without_a_loss,
    wrapped,
)
from test_accelerator import Looks, as_accelerator
from torch import Tensor

from cgq.vectors.recording import REPEATS, Recording

CPU = torch.device("cpu")


class Again:
    """A recorder that does the work anew at each replay, without a look, as kernels would."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.device, self.is_busy, self.fails = device, False, False
        self.captures = self.replays = 0

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            with pytest.MonkeyPatch.context() as patch:
                looks = Looks(patch)
                work()
                assert looks.count == 0

        return replay


def summed(now: Any) -> Any:
    return {"sum": now["sum"] + now["more"], "twice": 2 * now["more"]}


def test_the_caller_works_until_the_key_has_come_often_enough() -> None:
    recorder = Again()
    recording = Recording(recorder)
    asked = [recording.done("key", {"sum": 0.0, "more": 1.0}, summed) for _ in range(6)]
    assert asked == [False] * (REPEATS - 1) + [True] * (7 - REPEATS)
    assert (recorder.captures, recorder.replays) == (1, 6 - REPEATS)
    assert not recording.done("another", {"sum": 0.0, "more": 1.0}, summed)
    assert recording.done("key", {"sum": 0.0, "more": 1.0}, summed)
    assert recorder.captures == 1


def test_state_stays_on_the_device_and_what_was_handed_out_stays_too() -> None:
    recording, total, seen = Recording(Again()), 0.0, []
    for number in range(10):
        if recording.done((), {"sum": total, "more": float(number)}, summed):
            numbers = recording.handed_out()
            total = numbers["sum"]
            seen.append(numbers)
        else:
            total += number
    assert [int(numbers["sum"]) for numbers in seen] == [3, 6, 10, 15, 21, 28, 36, 45]
    assert [int(numbers["twice"]) for numbers in seen] == list(range(4, 20, 2))


def test_only_what_has_changed_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    recording = Recording(Again())
    numbers: dict[str, Any] = {"sum": 0.0, "more": 1.0}
    for _ in range(REPEATS + 1):
        if recording.done((), numbers, summed):
            numbers["sum"] = recording.handed_out()["sum"]
    put: list[list[float]] = []
    copy_, fill_ = Tensor.copy_, Tensor.fill_

    def copied(tensor: Tensor, other: Tensor, non_blocking: bool = False) -> Tensor:
        put.append(other.flatten().tolist())
        return copy_(tensor, other, non_blocking)

    def filled(tensor: Tensor, value: float) -> Tensor:
        put.append([value])
        return fill_(tensor, value)

    def written() -> list[list[float]]:
        """What is put into slots; the work's own results and state take other ways."""
        put.clear()
        assert recording.done((), numbers, summed)
        numbers["sum"] = recording.handed_out()["sum"]
        return list(put)

    monkeypatch.setattr(Tensor, "copy_", copied)
    monkeypatch.setattr(Tensor, "fill_", filled)
    assert written() == []
    numbers["more"] = 2.0
    assert written() == [[2.0]]
    assert written() == []
    numbers["sum"] = 7.0  # as after a search
    assert written() == [[7.0, 2.0]]
    numbers["sum"] = torch.tensor(5.0)
    numbers["more"] = torch.ones(1)
    assert written() == [[5.0], [1.0]]
    assert written() == [[1.0]]  # its owner may have overwritten it
    assert float(numbers["sum"]) == 7.0


def test_names_belong_to_the_key() -> None:
    recorder = Again()
    recording = Recording(recorder)
    for numbers in [{"a": 1.0}] * 4 + [{"a": 1.0, "b": 2.0}] * 2:
        recording.done((), numbers, dict)
    assert (recorder.captures, recorder.replays) == (1, 1)


def test_captures_become_rarer_where_the_key_changes_again_and_again() -> None:
    recorder = Again()
    recording = Recording(recorder)
    for number in range(1000):
        recording.done(number // 10, {"sum": 0.0, "more": 1.0}, summed)
    assert recorder.captures == 3
    recorder.captures = 0
    for number in range(10_000):
        recording.done(-1 - number // 200, {"sum": 0.0, "more": 1.0}, summed)
    assert recorder.captures == 50  # but no rarer than worth it


def test_a_key_that_comes_now_and_then_changes_nothing() -> None:
    recorder = Again()
    recording = Recording(recorder)
    sums = []
    total: Any = 0.0
    for number in range(100):
        if recording.done(number % 10 == 9, {"sum": total, "more": 1.0}, summed):
            total = recording.handed_out()["sum"]
        else:
            total = total + 1.0
        sums.append(float(total))
    assert sums == list(range(1, 101))
    assert recorder.captures == 1
    assert recorder.replays == 90 - REPEATS


def test_a_capture_that_fails_is_not_tried_again() -> None:
    recorder = Again()
    recording = Recording(recorder)
    for _ in range(REPEATS):
        recording.done("one", {"sum": 0.0, "more": 1.0}, summed)
    recorder.fails = True
    assert not recording.done("one", {"sum": 0.0, "more": 1.0}, summed)
    recorder.fails = False
    for _ in range(5):
        assert not recording.done("one", {"sum": 0.0, "more": 1.0}, summed)
    assert recorder.captures == 0
    for _ in range(5):
        recording.done("two", {"sum": 0.0, "more": 1.0}, summed)
    assert recorder.captures == 1


def test_an_error_of_the_work_is_the_callers() -> None:
    def failing(now: Any) -> Any:
        raise KeyError

    recording = Recording(Again())
    for _ in range(REPEATS - 1):
        recording.done((), {}, failing)
    with pytest.raises(KeyError):
        recording.done((), {}, failing)


def test_nothing_is_done_while_somebody_else_captures() -> None:
    recorder = Again()
    recording = Recording(recorder)
    for _ in range(5):
        recording.done((), {"sum": 0.0, "more": 1.0}, summed)
    recorder.is_busy = True
    assert not recording.is_possible
    assert not recording.done((), {"sum": 0.0, "more": 1.0}, summed)
    recorder.is_busy = False
    assert recording.done((), {"sum": 0.0, "more": 1.0}, summed)
    assert recorder.captures == 1


def pair(
    case: Case, patch: pytest.MonkeyPatch, recorder: Callable[[Any], Any] = lambda layout: Again()
) -> tuple[Run, Run]:
    """A run on the way of an accelerator, and one whose steps are recorded."""
    as_accelerator(patch)
    runs = []
    for each in (lambda layout: None, recorder):
        record_with(patch, each)
        runs.append(Run(case))
        runs[-1].step()  # here its workspace is made
    return runs[0], runs[1]


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(CASES[name], monkeypatch)
    unsearched = 0
    for number in range(40):
        for run in (plain, recorded):
            run.step(BAD.get(number, 1.0))
        assert (plain.optimizer.last_search is None) == (recorded.optimizer.last_search is None)
        unsearched += plain.optimizer.last_search is None
        if number % 5 == 0:
            assert_same(recorded.facts(), plain.facts())
    assert_same(recorded.facts(), plain.facts())
    assert recorded.is_recorded
    assert unsearched >= 15
    assert int(recorded.optimizer.param_groups[0]["skipped"]) >= 2


@pytest.mark.parametrize("name", ["rule", "constant", "relative", "adamw"])
def test_the_same_bits_without_a_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_loss(*pair(CASES[name], monkeypatch), steps=10)


@pytest.mark.parametrize("name", ["rule", "two groups", "relative", "adamw"])
def test_a_rate_that_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(CASES[name], monkeypatch)
    with_rates_that_change(plain, recorded)
    assert recorded.is_recorded


@pytest.mark.parametrize("name", ["rule", "two groups", "adamw"])
def test_parameters_that_move_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(CASES[name], monkeypatch)
    for number in range(50):
        for run in (plain, recorded):
            if number in (10, 15):
                for param in run.params:
                    param.data = param.data.clone()
            run.step()
    assert_same(recorded.facts(), plain.facts())
    assert recorded.is_recorded


@pytest.mark.parametrize("name", ["smoothed", "relative", "adamw", "sgd"])
def test_resumed_is_continued(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pair(CASES[name], monkeypatch)[1]
    for _ in range(15):
        run.step()
    assert run.is_recorded
    other = resumed(run, CASES[name])
    for _ in range(15):
        for each in (run, other):
            each.step()
    assert_same(other.facts(), run.facts())


@pytest.mark.parametrize("name", ["rule", "adamw"])
def test_no_recording_is_copied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pair(CASES[name], monkeypatch)[1]
    for _ in range(12):
        run.step()
    for copied in (copy.deepcopy(run.optimizer), pickle.loads(pickle.dumps(run.optimizer))):
        assert copied._workspace is None


def test_a_capture_that_fails_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Again()
    recorder.fails = True
    for name in ("rule", "adamw"):
        plain, recorded = pair(CASES[name], monkeypatch, lambda layout: recorder)
        for _ in range(20):
            for run in (plain, recorded):
                run.step()
        assert_same(recorded.facts(), plain.facts())
        assert not recorded.is_recorded


def test_a_rule_of_the_users_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(g: Any, h: Any, p: Any) -> Any:
        return 0.5 if float(g @ g) > 0.0 else 0.0

    run = pair(Case(cgq_of(momentum=halved)), monkeypatch)[1]
    for _ in range(12):
        run.step()
    assert not run.is_recorded


def test_a_replayed_step_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    # Adam counts its steps in tensors, on the host, and reads them; SGD reads nothing.
    for case in (Case(cgq_of(search_prob=0.0)), Case(wrapped(torch.optim.SGD, momentum=0.9))):
        run = pair(case, monkeypatch)[1]
        monkeypatch.setattr(run.optimizer, "_is_due", lambda: False)
        for _ in range(2 * REPEATS):
            run.step()
        with monkeypatch.context() as patch:
            looks = Looks(patch)
            run.step()
        assert looks.count == 0
        assert run.is_recorded


def test_a_recording_goes_with_its_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the garbage collector: device memory is not to wait for it."""
    for name in ("rule", "adamw"):
        recorder = Again()
        recorder.captured = lambda work: lambda: None  # type: ignore[method-assign]
        run = pair(CASES[name], monkeypatch, lambda layout: recorder)[1]
        gc.collect()
        gc.disable()
        try:
            for _ in range(12):
                run.step()
            made = [weakref.ref(recording._numbers) for recording in run.recordings]
            assert all(ref() is not None for ref in made)
            run.optimizer._forget_vectors()
            assert all(ref() is None for ref in made)
        finally:
            gc.enable()
