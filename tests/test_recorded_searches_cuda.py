"""Recorded searches on a GPU: bit for bit those that launch their kernels one by one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from recorded_run import (
    ON_CUDA,
    Case,
    Run,
    always_searched,
    are_recorded,
    assert_same,
    assert_same_search,
    cgq_of,
    memory_that_stays,
    record_with,
    searched,
    searched_now_and_then,
    with_rates_that_change,
)
from test_recorded_searches import LATER, SEARCHED, raising_first
from test_recording_cuda import pair
from torch import nn
from waits import noted_waits

from cgq import CGQ, LineSearch
from cgq.vectors.cuda_graph import CudaRecorder, recorder_for

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]


@pytest.mark.parametrize("name", SEARCHED)
def test_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searched(*pair(SEARCHED[name], monkeypatch), LATER)


@pytest.mark.parametrize("name", ["rule", "constant", "relative", "two groups", "adamw", "sgd"])
def test_the_same_bits_with_steps_in_between(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searched_now_and_then(*pair(SEARCHED[name], monkeypatch), LATER)


@pytest.mark.parametrize("name", ["sgd joined", "capturable joined", "fused joined"])
def test_a_base_that_says_it_can_is_recorded_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step, and the copies of its state, which a batch that is lost asks for."""
    runs = pair(ON_CUDA[name], monkeypatch)
    searched_now_and_then(*runs, LATER)
    workspace = runs[1].optimizer._workspace
    assert are_recorded(
        [workspace.of_base.whole, workspace.of_base.stepping, workspace.of_base.keeping]
    )


@pytest.mark.parametrize("name", ["all", "all relative", "two groups", "adamw"])
def test_a_rate_that_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(SEARCHED[name], monkeypatch)
    always_searched(plain, recorded)
    with_rates_that_change(plain, recorded)


@pytest.mark.parametrize("name", ["all", "all joined", "adamw"])
def test_parameters_that_move_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(SEARCHED[name], monkeypatch)
    always_searched(plain, recorded)
    kept = []
    for number in range(40):
        for run in (plain, recorded):
            if number in (10, 15):
                for param in run.params:
                    kept.append(param.data)  # so that nobody else gets this memory
                    param.data = param.data.clone()
            run.step()
    assert_same(recorded.facts(), plain.facts())
    assert are_recorded(recorded.of_searches)


@pytest.mark.parametrize("name", ["all", "all smoothed", "relative", "adamw", "sgd"])
def test_resumed_is_continued(name: str) -> None:
    run = Run(SEARCHED[name], "cuda")
    always_searched(run)
    for _ in range(15):
        run.step()
    assert are_recorded(run.of_searches)
    other = Run(SEARCHED[name], "cuda")
    always_searched(other)
    other.number = run.number
    other.model.load_state_dict(run.model.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    for _ in range(15):
        for each in (run, other):
            each.step()
        assert_same_search(run, other)
    assert_same(other.facts(), run.facts())


@pytest.mark.filterwarnings("ignore:A trial of the line search raised")
@pytest.mark.parametrize("name", ["all", "all joined", "all relative", "adamw", "adamw joined"])
def test_a_trial_that_raises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(SEARCHED[name], monkeypatch)
    always_searched(plain, recorded)
    for run in (plain, recorded):
        raising_first(run, lambda call: call > 20 and call % 3 == 0)
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


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(
    "name", ["all", "all joined", "all relative", "relative", "all smoothed", "adamw"]
)
def test_the_host_waits_once(name: str, every: int) -> None:
    """Also for what steps in between have left on the device."""
    run = Run(SEARCHED[name], "cuda")
    due = False
    run.optimizer._is_due = lambda: due
    options = run.optimizer.options
    foreseen = 2 if options.shrinks_trial else 1
    for number in range(60):
        due = number % every == 0
        if number == 30:
            assert are_recorded(run.of_searches)
            for group in run.optimizer.param_groups:
                group["start_checks"] = 1  # which is one wait more, once
            torch.cuda.synchronize()
        # A watched run hears of a loss two steps later, and waits if it is not there by then.
        with noted_waits(of_events=not options.is_watched) as waits:
            run.step()
        search = run.optimizer.last_search
        assert (search is not None) == due
        if number >= 30:
            further = 0 if search is None else max(0, len(search.trial_steps) - foreseen)
            assert len(waits) <= due + further, waits


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: CGQ(weights),
        lambda weights: CGQ(weights, search_prob=0.5),
        lambda weights: LineSearch(torch.optim.AdamW(weights)),
    ],
    ids=["cgq", "scgq", "adamw"],
)
def test_probes_see_the_noise_of_the_first_pass(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures come between the passes, and take hold of the device's generator."""
    ends = []
    for recorder in (lambda layout: None, recorder_for):
        record_with(monkeypatch, recorder)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 8)).cuda()
        inputs = torch.randn(16, 8, device="cuda")
        optimizer = make(model.parameters())
        losses = []
        for _ in range(30):
            losses.append(optimizer.step(lambda: nn.functional.mse_loss(model(inputs), inputs)))
        ends.append(torch.stack(losses))
        ends.append(torch.cat([param.detach().flatten() for param in model.parameters()]))
        ends.append(torch.rand(5, device="cuda"))
    for plain, recorded in zip(ends[:3], ends[3:], strict=True):
        assert torch.equal(plain, recorded)


def test_draws_go_on_after_a_capture_that_failed() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    recorder, number = CudaRecorder(device), torch.ones((), device=device)
    torch.cuda.manual_seed(1)
    expected = torch.rand(5, device=device), torch.rand(5, device=device)
    torch.cuda.manual_seed(1)
    first, stream = torch.rand(5, device=device), torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        recorder.captured(lambda: print(number.item()))
    assert torch.cuda.current_stream() == stream
    assert torch.equal(first, expected[0])
    assert torch.equal(torch.rand(5, device=device), expected[1])
    replay = recorder.captured(lambda: number.add_(1.0))  # and captures too
    replay()
    assert number.item() == 2.0


def test_no_copy_of_the_parameters_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a search takes stays; besides its passes it takes no long vector."""
    for case in (SEARCHED["all"], Case(cgq_of(search_prob=1.0, momentum=0.9), joined=True)):
        run = Run(case, "cuda")
        for _ in range(10):
            run.step()
        made: list[Any] = []
        monkeypatch.setattr(run.optimizer._workspace.layout, "_buffer", made.append)
        for _ in range(3):
            run.step()
        assert made == []


def test_memory_is_given_back() -> None:
    for name in ("all", "adamw"):
        reserved = []
        for _ in range(4):
            run = Run(SEARCHED[name], "cuda")
            always_searched(run)
            for _ in range(15):
                run.step()
            assert are_recorded(run.of_searches)
            del run
            reserved.append(memory_that_stays())
        assert reserved[-1] <= reserved[0]  # by when libraries have taken what they keep
