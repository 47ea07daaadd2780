"""Triton's kernels, interpreted on the CPU: their mathematics, and whole runs by them.

Triton is large, and only a GPU has a use for it; so these run where it is installed.
"""

from __future__ import annotations

import copy
import math
import os
from typing import Any

import pytest
import torch
from recorded_run import BAD, CASES, Run, always_searched, assert_same, record_with
from test_accelerator import as_accelerator
from test_recording import Again
from torch import Tensor

from cgq import CGQ
from cgq.vectors import one_pass

if torch.cuda.is_available():
    pytest.skip("there they are not interpreted: test_one_pass_cuda.py", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton")
# What NumPy says where a GPU is silent.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
SIZES = [1, 7, one_pass.BLOCK, one_pass.BLOCK + 1, 3 * one_pass.BLOCK - 5]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every vector of float32 is handled by interpreted kernels."""
    monkeypatch.setattr(one_pass, "serves", lambda layout: layout.is_single)


def vectors(size: int, count: int) -> list[Tensor]:
    torch.manual_seed(size)
    return [torch.randn(size) for _ in range(count)]


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_products(size: int, count: int) -> None:
    given = vectors(size, count)
    pairs = [(a, b) for a in range(count) for b in range(count)]
    for (a, b), product in zip(pairs, one_pass.products(given, pairs), strict=True):
        exact = torch.dot(given[a].double(), given[b].double()).item()
        assert product.dtype == torch.float64
        assert product.item() == pytest.approx(exact, rel=1e-5, abs=1e-4)
        (alone,) = one_pass.products([given[a], given[b]], [(0, 1)])
        assert alone.item() == product.item()  # asked for alone or with others: the same bits


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float16, torch.float64])
def test_products_whatever_torch_makes_by_default(default: torch.dtype) -> None:
    given = [300.0 * vector for vector in vectors(5000, 2)]
    expected = one_pass.products(given, [(0, 0), (0, 1)])
    torch.set_default_dtype(default)
    try:
        found = one_pass.products(given, [(0, 0), (0, 1)])
    finally:
        torch.set_default_dtype(torch.float32)
    assert [each.item() for each in found] == [each.item() for each in expected]


def test_resume_with_clipped_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which products are asked for at once is not known after loading; bits must not show it."""
    as_accelerator(monkeypatch)

    def made() -> tuple[torch.nn.Module, CGQ]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
        first, *others = model.parameters()
        groups = [{"params": [first], "lr": 10.0}, {"params": others, "lr": 5.0}]
        return model, CGQ(groups, max_relative_step=0.01)

    def trained(model: torch.nn.Module, optimizer: CGQ, steps: range) -> None:
        for number in steps:
            torch.manual_seed(number)
            inputs = torch.randn(16, 5)

            def closure(backward: bool) -> Tensor:
                loss = (model(inputs) - inputs[:, :1]).square().mean()
                if backward:
                    loss.backward()
                    with optimizer.clipping():
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                return loss.detach()

            optimizer.step(closure)

    whole, resumed = made(), made()
    trained(*whole, range(6))
    first = made()
    trained(*first, range(4))
    resumed[0].load_state_dict(first[0].state_dict())
    resumed[1].load_state_dict(copy.deepcopy(first[1].state_dict()))
    trained(*resumed, range(4, 6))
    torch.testing.assert_close(
        list(resumed[0].parameters()), list(whole[0].parameters()), rtol=0, atol=0
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kept", [None, 0.5, number(0.5)])
@pytest.mark.parametrize("terms", [0, 1, 2])
def test_combine(size: int, kept: Any, terms: int) -> None:
    out, theta, *others = vectors(size, 4)
    factors = [number(2.0), -3.0][:terms]
    expected = (1.0 if kept is None else 0.5) * theta.double()
    for factor, other in zip(factors, others, strict=False):
        expected += factor * other.double()
    one_pass.combine(out, theta, kept, list(zip(others, factors, strict=False)))
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("kept", [None, 0.9])
@pytest.mark.parametrize("from_r", [None, 0.1])
@pytest.mark.parametrize("from_theta", [True, False])
@pytest.mark.parametrize("with_h", [True, False])
def test_remember_and_move(
    lost: bool, kept: float | None, from_r: float | None, from_theta: bool, with_h: bool
) -> None:
    p, h, r, theta = vectors(one_pass.BLOCK + 3, 4)
    if lost:
        r.fill_(math.nan)
    old = [vector.clone() for vector in (p, h, theta)]
    new_p = -r.double() + 0.3 * p.double()
    moved = 0.2 * new_p - (from_r or 0.0) * r.double()
    if from_theta:
        moved += (kept or 1.0) * theta.double()
    one_pass.remember_and_move(
        p, h if with_h else None, r, -1.0, number(0.3), torch.tensor(lost),
        out=theta, theta=theta if from_theta else None, kept=kept, from_r=from_r, from_p=0.2,
    )  # fmt: skip
    if lost:
        torch.testing.assert_close([p, h, theta], old, rtol=0, atol=0)
    else:
        torch.testing.assert_close(h, -r if with_h else old[1], rtol=0, atol=0)
        torch.testing.assert_close(p.double(), new_p, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(theta.double(), moved, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lost", [False, True])
def test_clear(lost: bool) -> None:
    vector = torch.full((one_pass.BLOCK + 3,), math.nan)
    one_pass.clear(vector, torch.tensor(lost))
    assert bool(vector.isnan().all()) is not lost
    assert not lost or not vector.any()


def ran(name: str, *, searched: bool) -> Run:
    run = Run(CASES[name])
    if searched:
        always_searched(run)
    for index in range(22):
        run.step(BAD.get(index, 1.0))
    return run


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_same_run_as_by_kernels_of_torch(
    name: str, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_accelerator(monkeypatch)
    mine = ran(name, searched=searched)
    monkeypatch.setattr(one_pass, "serves", lambda layout: False)
    its = ran(name, searched=searched)
    assert int(mine.optimizer.param_groups[0]["skipped"]) >= 2
    # Not the weights: that of a bias before a BatchNorm is rounding, which AdamW makes large.
    seen = [run.model(run.inputs[0]) for run in (mine, its)]
    torch.testing.assert_close(*seen, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_recorded_steps_have_the_same_bits(
    name: str, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_accelerator(monkeypatch)
    record_with(monkeypatch, lambda layout: None)
    plain = ran(name, searched=searched)
    record_with(monkeypatch, lambda layout: Again())
    recorded = ran(name, searched=searched)
    assert_same(recorded.facts(), plain.facts())
