"""Triton's kernels on a GPU: exact on long vectors, and the same bits however they are asked."""

from __future__ import annotations

import math

import pytest
import torch
from recorded_run import BAD, CASES, Run, always_searched
from test_cuda import no_waiting
from torch import Tensor

from cgq import CGQ
from cgq.vectors import one_pass
from cgq.vectors.layout import Layout

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]
SIZES = [1, 15, 16, 4095, 1_000_003]


def vectors(size: int, count: int, shift: int = 0) -> list[Tensor]:
    torch.manual_seed(size)
    return [torch.randn(size + shift, device="cuda")[shift:] for _ in range(count)]


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cuda")


def test_they_are_used_here() -> None:
    single = [torch.zeros(3, device="cuda"), torch.zeros(4, device="cuda")]
    assert one_pass.serves(Layout(single, [0, 0]))
    assert not one_pass.serves(Layout([single[0].double()], [0]))
    assert not one_pass.serves(Layout([single[0].bfloat16()], [0]))
    assert not one_pass.serves(Layout([single[0].cpu()], [0]))


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("size", SIZES)
def test_products(size: int, shift: int) -> None:
    given = vectors(size, 5, shift)
    pairs = [(a, b) for a in range(5) for b in range(5)]
    for (a, b), product in zip(pairs, one_pass.products(given, pairs), strict=True):
        exact = torch.dot(given[a].double(), given[b].double()).item()
        scale = given[a].norm().item() * given[b].norm().item()
        assert product.item() == pytest.approx(exact, abs=1e-6 * scale)
        (alone,) = one_pass.products([given[a], given[b]], [(0, 1)])
        (copied,) = one_pass.products([given[b].clone(), given[a].clone()], [(1, 0)])
        assert alone.item() == product.item()
        assert shift or copied.item() == product.item()


@pytest.mark.parametrize("size", SIZES)
def test_moves(size: int) -> None:
    p, h, r, theta = vectors(size, 4)
    new_p = -r.double() + 0.3 * p.double()
    moved = 0.9 * theta.double() + 0.2 * new_p - 0.1 * r.double()
    one_pass.remember_and_move(
        p, h, r, -1.0, number(0.3), torch.tensor(False, device="cuda"),
        out=theta, theta=theta, kept=number(0.9), from_r=number(0.1), from_p=number(0.2),
    )  # fmt: skip
    torch.testing.assert_close(h, -r, rtol=0, atol=0)
    torch.testing.assert_close(p.double(), new_p, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(theta.double(), moved, rtol=1e-5, atol=1e-6)
    before = [vector.clone() for vector in (p, h, theta)]
    r.fill_(math.nan)
    one_pass.remember_and_move(
        p, h, r, -1.0, number(0.3), torch.tensor(True, device="cuda"),
        out=theta, theta=theta, kept=None, from_r=None, from_p=number(0.2),
    )  # fmt: skip
    torch.testing.assert_close([p, h, theta], before, rtol=0, atol=0)
    one_pass.clear(r, torch.tensor(True, device="cuda"))
    assert not r.any()
    one_pass.combine(r, theta, number(0.5), [(p, number(2.0)), (h, -3.0)])
    expected = 0.5 * theta.double() + 2.0 * p.double() - 3.0 * h.double()
    torch.testing.assert_close(r.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_same_run_as_by_kernels_of_torch(
    name: str, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    for kernels in ("Triton's", "torch's"):
        if kernels == "torch's":
            monkeypatch.setattr(one_pass, "serves", lambda layout: False)
        run = Run(CASES[name], "cuda")
        if searched:
            always_searched(run)
        for index in range(22):
            run.step(BAD.get(index, 1.0))
        runs.append(run)
    seen = [run.model(run.inputs[0]) for run in runs]
    torch.testing.assert_close(*seen, rtol=1e-3, atol=1e-4)


def test_nothing_waits_for_the_device() -> None:
    run = Run(CASES["never searched"], "cuda")
    for _ in range(10):
        run.step()
    with no_waiting():
        run.step()
    assert run.is_recorded


def test_a_device_that_is_not_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    weight = torch.nn.Parameter(torch.ones(5, device="cuda:1"))
    optimizer = CGQ([weight], lr=0.1)
    for _ in range(6):
        optimizer.step(lambda: weight.square().sum())
    assert weight.abs().max() < 0.9
