"""Recorded steps on a GPU: bit for bit those that launch their kernels one by one."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from recorded_run import (
    BAD,
    CASES,
    ON_CUDA,
    Case,
    Run,
    assert_same,
    cgq_of,
    memory_that_stays,
    record_with,
    with_rates_that_change,
    without_a_loss,
    wrapped,
)
from test_cuda import no_waiting
from torch import nn

from cgq import CGQ, LineSearch
from cgq.vectors.cuda_graph import CudaRecorder, recorder_for

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

WITH_BASE = ["sgd joined", "fused joined"]  # whose gradients stay where they are


def pair(case: Case, patch: pytest.MonkeyPatch) -> tuple[Run, Run]:
    """A run whose kernels are launched one by one, and one whose steps are recorded."""
    runs = []
    for recorder in (lambda layout: None, recorder_for):
        record_with(patch, recorder)
        runs.append(Run(case, "cuda"))
        runs[-1].step()  # here its workspace is made
    return runs[0], runs[1]


@pytest.mark.parametrize("name", ON_CUDA)
def test_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(ON_CUDA[name], monkeypatch)
    assert recorded.recordings[0].is_possible
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


@pytest.mark.parametrize("name", ["rule", "constant", "relative", "adamw", *WITH_BASE])
def test_the_same_bits_without_a_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_loss(*pair(ON_CUDA[name], monkeypatch), steps=30)


@pytest.mark.parametrize("name", ["rule", "two groups", "relative", "adamw", *WITH_BASE])
def test_a_rate_that_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_rates_that_change(*pair(ON_CUDA[name], monkeypatch))


@pytest.mark.parametrize("name", ["rule", "two groups", "adamw", *WITH_BASE])
def test_parameters_that_move_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(ON_CUDA[name], monkeypatch)
    kept = []
    for number in range(50):
        for run in (plain, recorded):
            if number in (10, 15):
                for param in run.params:
                    kept.append(param.data)  # so that nobody else gets this memory
                    param.data = param.data.clone()
            run.step()
    assert_same(recorded.facts(), plain.facts())
    assert recorded.is_recorded


@pytest.mark.parametrize("name", ["smoothed", "relative", "adamw", "sgd", *WITH_BASE])
def test_resumed_is_continued(name: str) -> None:
    run = Run(ON_CUDA[name], "cuda")
    for _ in range(25):
        run.step()
    assert run.is_recorded
    other = Run(ON_CUDA[name], "cuda")
    other.number = run.number
    other.model.load_state_dict(run.model.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    for _ in range(15):
        for each in (run, other):
            each.step()
    assert_same(other.facts(), run.facts())


@pytest.mark.parametrize("name", ["rule", "adamw"])
def test_copies_go_on_alike(name: str) -> None:
    run = Run(CASES[name], "cuda")
    for _ in range(25):
        run.step()
    for copied in (copy.deepcopy(run.optimizer), pickle.loads(pickle.dumps(run.optimizer))):
        assert copied._workspace is None
    twin = copy.deepcopy(run)
    twin.params = list(twin.model.parameters())
    for _ in range(15):
        for each in (run, twin):
            each.step()
    assert_same(twin.facts(), run.facts())


@pytest.mark.parametrize("name", [name for name in ON_CUDA if "joined" in name])
def test_a_base_that_says_it_can_is_recorded_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, recorded = pair(ON_CUDA[name], monkeypatch)
    for _ in range(25):
        for run in (plain, recorded):
            run.step()
    can = name in ("sgd joined", "capturable joined", "fused joined", "rmsprop joined")
    assert recorded.base_is_recorded == can
    assert_same(recorded.facts(), plain.facts())


def base_moves(run: Run, number: int) -> None:
    """Its state is loaded behind our back, and then replaced."""
    base = run.optimizer.base
    if number == 15:
        base.load_state_dict(copy.deepcopy(base.state_dict()))
    elif number == 22:
        for entry in base.state.values():
            for name, value in entry.items():
                entry[name] = value.clone()


@pytest.mark.parametrize("name", WITH_BASE)
def test_state_of_a_recorded_base_that_moves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = pair(ON_CUDA[name], monkeypatch)
    for number in range(40):
        for run in (plain, recorded):
            base_moves(run, number)
            run.step()
    assert_same(recorded.facts(), plain.facts())
    assert recorded.base_is_recorded


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        cgq_of(search_prob=1e-9),
        cgq_of(search_prob=0.0),
        wrapped(torch.optim.AdamW),
        wrapped(torch.optim.AdamW, capturable=True, fused=True),
    ],
    ids=["watched", "never searched", "adamw", "fused"],
)
def test_no_waiting(make: Any, joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even to capture."""
    run = Run(Case(make, joined), "cuda")
    run.step()
    monkeypatch.setattr(run.optimizer, "_is_due", lambda: False)
    for _ in range(2):
        run.step()
    torch.cuda.synchronize()
    with no_waiting():
        for number in range(8):
            run.step(math.nan if number == 6 else 1.0)
    assert run.is_recorded
    assert int(run.optimizer.param_groups[0]["skipped"]) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: CGQ(weights, search_prob=0.0),
        lambda weights: CGQ(weights, search_prob=0.0, momentum=0.9),
        lambda weights: LineSearch(
            torch.optim.AdamW(weights, lr=0.01, capturable=True), search_prob=0.0
        ),
    ],
    ids=["rule", "constant", "adamw"],
)
def test_a_step_within_somebody_elses_graph(make: Any) -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(50, 4, device="cuda")) for _ in range(4)]
    optimizer = make(weights)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(8):
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    before = [weight.detach().clone() for weight in weights]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        optimizer.step()
    assert all(map(torch.equal, weights, before))
    graph.replay()
    torch.cuda.synchronize()
    assert all((weight < old).any() for weight, old in zip(weights, before, strict=True))
    optimizer.step()  # and goes on outside
    assert all(weight.isfinite().all() for weight in weights)


def test_draws_go_on_as_without_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture takes hold of the device's generator for a moment."""
    plain, recorded = pair(CASES["rule"], monkeypatch)
    torch.cuda.manual_seed(1)
    drawn = []
    for run in (plain, recorded):
        torch.cuda.manual_seed(1)
        draws = []
        for _ in range(12):
            draws.append(torch.rand(5, device="cuda"))
            run.step()
        drawn.append(torch.stack(draws))
    assert torch.equal(*drawn)


def test_graphs_under_way_draw_as_without_a_capture() -> None:
    """What they draw by is theirs and a capture's: one must wait for the other."""
    drawn = []
    for records in (False, True):
        torch.cuda.manual_seed(1)
        noise = torch.zeros(1 << 20, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            noise.uniform_()
        recorder = CudaRecorder(torch.device("cuda", torch.cuda.current_device()))
        other = torch.zeros(4, device="cuda")
        torch.cuda.synchronize()
        kept = []
        for number in range(20):
            torch.cuda._sleep(1_000_000)  # so that the host is ahead
            graph.replay()
            kept.append(noise.clone())
            if records and number % 5 == 2:
                recorder.captured(lambda: other.add_(1))()
        drawn.append(torch.stack(kept))
        assert other.tolist() == [4.0 * records] * 4
    assert torch.equal(*drawn)


def test_memory_is_given_back() -> None:
    for name in ("rule", "adamw", "fused joined"):
        reserved = []
        for _ in range(4):
            run = Run(ON_CUDA[name], "cuda")
            for _ in range(25):
                run.step()
            assert run.is_recorded
            del run
            reserved.append(memory_that_stays())
        assert reserved[-1] <= reserved[0]  # by when libraries have taken what they keep
