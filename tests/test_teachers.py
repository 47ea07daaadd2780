"""Passes that write more than buffers: a teacher's weights, long tables, tensors behind views."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_accelerator import as_accelerator
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from cgq import CGQ, LineSearch

Make = Callable[[nn.Module, bool], Any]


def conjugate(model: nn.Module, named: bool) -> CGQ:
    return CGQ(model.parameters(), model=model if named else None)


def wrapped(model: nn.Module, named: bool) -> LineSearch:
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return LineSearch(base, model=model if named else None, search_prob=1.0)


both = pytest.mark.parametrize("make", [conjugate, wrapped])
named_or_not = pytest.mark.parametrize("named", [True, False])


class Follower(nn.Module):
    """A student, and a teacher that follows it whenever it is called."""

    def __init__(self, write: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.student = nn.Linear(4, 4, bias=False)
        self.teacher = nn.Linear(4, 4, bias=False).requires_grad_(False)
        self._write = write
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self._write(self.teacher.weight, self.student.weight)
        self.seen.append(self.teacher.weight.clone())
        return (self.student(x) - self.teacher(x)).square().mean()


def in_place(teacher: Tensor, student: Tensor) -> None:
    teacher.mul_(0.9)


def with_new_data(teacher: Tensor, student: Tensor) -> None:
    teacher.data = 0.9 * teacher.data


@both
@named_or_not
@pytest.mark.parametrize("write", [in_place, with_new_data])
def test_a_teacher_is_moved_by_one_pass_a_step(
    make: Make, named: bool, write: Callable[[Tensor, Tensor], None]
) -> None:
    model, x = Follower(write), torch.randn(8, 4)
    optimizer = make(model, named)
    for step in range(4):
        before = model.teacher.weight.clone()
        model.seen.clear()
        optimizer.step(lambda: model(x))
        torch.testing.assert_close(model.teacher.weight.detach(), 0.9 * before, rtol=0, atol=0)
        assert len(model.seen) == 1 + optimizer.last_search.evaluations > 1
        if step:  # each pass has seen the same teacher
            assert all(torch.equal(seen, model.seen[0]) for seen in model.seen)


@both
@named_or_not
@pytest.mark.parametrize("device", ["host", "accelerator"])
def test_a_skipped_step_leaves_the_teacher(
    make: Make, named: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "accelerator":
        as_accelerator(monkeypatch)
    model, x = Follower(in_place), torch.randn(8, 4)
    optimizer = make(model, named)
    optimizer.step(lambda: model(x))
    before = model.teacher.weight.clone()
    optimizer.step(lambda: math.nan * model(x))
    assert optimizer.param_groups[0]["skipped"] == 1
    assert torch.equal(model.teacher.weight, before)


@both
def test_a_teacher_that_is_unfrozen_is_trained(make: Make) -> None:
    model, x = Follower(in_place), torch.randn(8, 4)
    optimizer = make(model, False)
    optimizer.step(lambda: model(x))
    model.teacher.requires_grad_()
    model._write = lambda teacher, student: None
    before = model.teacher.weight.detach().clone()
    optimizer.step(lambda: model(x))
    assert not torch.equal(model.teacher.weight, before)


@both
def test_no_frozen_weights_are_copied_that_nobody_writes(make: Make) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False))
    optimizer, x = make(model, True), torch.randn(8, 4)
    for _ in range(20):
        optimizer.step(lambda: model(x).square().mean())
    assert optimizer._environment._written.known() == []


class Table(nn.Module):
    """Writes a long table and a count behind their tensors' backs."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.table: Tensor
        self.counts: Tensor
        self.register_buffer("table", torch.ones(size))
        self.register_buffer("counts", torch.zeros(size, dtype=torch.int16))

    def forward(self, x: Tensor) -> Tensor:
        self.table.data.mul_(0.5)
        self.counts.numpy()[0] += 1
        return self.layer(x)


@both
@pytest.mark.parametrize("size", [100, 1 << 16, 100_000])
def test_long_buffers_whose_version_stays_leave_one_trace(make: Make, size: int) -> None:
    model, x = Table(size), torch.randn(8, 4)
    optimizer = make(model, True)
    optimizer.step(lambda: model(x).square().mean())
    assert optimizer.last_search.evaluations
    assert (model.table == 0.5).all()
    assert model.counts[0] == 1
    optimizer.step(lambda: math.nan * model(x).square().mean())
    assert (model.table == 0.5).all()
    assert model.counts[0] == 1


FOURIER = torch.fft.fft(torch.eye(4))


@both
@pytest.mark.parametrize(
    "held",
    [
        FOURIER.conj(),
        FOURIER.mH,
        FOURIER.conj().imag,
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    ],
    ids=["conjugate", "adjoint", "negative", "nested"],
)
def test_buffers_that_are_views_do_no_harm(make: Make, held: Tensor) -> None:
    model = nn.Linear(4, 4)
    model.register_buffer("held", held)
    optimizer = make(model, False)
    optimizer.step(lambda: model(torch.ones(2, 4)).square().mean())
    assert optimizer.last_search.accepted


def test_a_conjugated_buffer_comes_back() -> None:
    class Turning(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.held.mul_(2.0)
            return super().forward(x)

    model = Turning(4, 4)
    model.register_buffer("held", FOURIER.clone().conj())
    optimizer = CGQ(model.parameters())
    optimizer.step(lambda: model(torch.ones(2, 4)).square().mean())
    assert optimizer.last_search is not None
    assert torch.equal(model.held, 2.0 * FOURIER.conj())


@both
def test_an_ensemble_by_vmap_trains(make: Make) -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 1)
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale

    models, x = [Scaled() for _ in range(3)], torch.randn(8, 4)
    params, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0])
    scale = skeleton.scale

    def one(params: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return functional_call(skeleton, (params, buffers), (x,))

    holder = nn.ParameterList(params.values())
    optimizer = make(holder, False)
    params = dict(zip(params, holder, strict=True))
    losses = [
        optimizer.step(lambda: vmap(one)(params, buffers).square().mean()).item() for _ in range(5)
    ]
    assert losses[-1] < losses[0]
    assert skeleton.scale is scale
