"""LineSearch where updates vanish, as at the end of a run: no number may leave its range."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_accelerator import as_accelerator
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from cgq import LineSearch
from cgq.rules.base_rate import HIGHEST, Lift


@pytest.fixture(params=["host", "accelerator"])
def device(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "accelerator":
        as_accelerator(monkeypatch)


@pytest.mark.parametrize("search_prob", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("device")
def test_an_update_too_small_for_its_factor(dtype: torch.dtype, search_prob: float) -> None:
    """ρ|θ|/|d| is beyond the range: 1e-4/1e-44 of float32."""
    weight = nn.Parameter(torch.zeros(3, dtype=dtype))
    tiny = 1e-44 if dtype == torch.float32 else 1e-320
    optimizer = LineSearch(torch.optim.SGD([weight], lr=1.0), search_prob=search_prob)
    for _ in range(30):
        optimizer.step(lambda: 1.0 + (tiny * weight[:2]).sum())
    assert weight.isfinite().all()
    assert weight[2] == 0.0


@pytest.mark.usefixtures("device")
def test_gradients_that_vanish_do_not_lift_a_rate_beyond_its_range() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = LineSearch(torch.optim.SGD([weight], lr=0.1), search_prob=1.0)
    lifts = []
    for step in range(160):
        optimizer.step(lambda factor=2.0**-step: (factor * weight).sum())
        lifts.append(optimizer.param_groups[0]["lift"])
    assert 2.0**30 < max(lifts) <= HIGHEST
    assert weight.isfinite().all()
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_lift_is_a_power_of_two_below_the_most() -> None:
    assert Lift().after(1e30).lift == HIGHEST
    assert Lift().after(1e30, most=65504.0).lift == 2.0**15
    assert Lift().after(1e30, most=0.1).lift == 1.0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_half_precision_is_not_lifted_out_of_its_range(momentum: float) -> None:
    weight = nn.Parameter(torch.tensor([2.0, 1.0], dtype=torch.float16))
    base = torch.optim.SGD([weight], lr=0.1, momentum=momentum)
    optimizer = LineSearch(base)
    for _ in range(1500):
        optimizer.step(lambda: (weight * weight).sum())
    assert weight.abs().max() < 0.1


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_goes_on_after_it_has_converged(seed: int) -> None:
    torch.manual_seed(seed)
    inputs = torch.randn(64, 10)
    targets = (inputs[:, 0] > 0).float()
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = LineSearch(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for _ in range(1500):
        loss = optimizer.step(
            lambda: binary_cross_entropy_with_logits(model(inputs)[:, 0], targets)
        )
    assert float(loss) < 1e-20
    assert optimizer.param_groups[0]["skipped"] == 0
