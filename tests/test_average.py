"""The anytime average against its formula, through torch's own AveragedModel."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from cgq import anytime_average
from cgq.average import Averaged

STEPS = 50


def trajectory(dtype: torch.dtype, shape: tuple[int, ...] = (2, 3)) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(STEPS, *shape, dtype=dtype, generator=generator)


def averages(points: Tensor, eta: float) -> list[Tensor]:
    """What AveragedModel holds after each of the points."""
    model = nn.ParameterList([torch.zeros_like(points[0])])
    averaged = AveragedModel(model, multi_avg_fn=anytime_average(eta))
    found = []
    for point in points:
        model[0].data.copy_(point)
        averaged.update_parameters(model)
        found.append(averaged.module[0].detach().clone())
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("eta", [0.0, 3.0, 8.0])
def test_formula(eta: float, dtype: torch.dtype) -> None:
    points = trajectory(dtype)
    mean = torch.zeros_like(points[0])
    for t, (point, found) in enumerate(zip(points, averages(points, eta), strict=True), start=1):
        weight = (eta + 1) / (t + eta)
        mean = (1 - weight) * mean + weight * point
        torch.testing.assert_close(found, mean, rtol=1e-12, atol=1e-12)


def test_eta_zero_is_the_plain_mean() -> None:
    points = trajectory(torch.float64)
    for t, found in enumerate(averages(points, 0.0), start=1):
        torch.testing.assert_close(found, points[:t].mean(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("eta", [0, 3, 8])
def test_weights_grow_like_a_power_of_time(eta: int) -> None:
    """In closed form step s of t weighs C(s+η-1, η) / C(t+η, η+1): about (s/t)^η, sum one."""
    found = averages(torch.eye(STEPS, dtype=torch.float64), eta)[-1]
    expected = [math.comb(s + eta - 1, eta) / math.comb(STEPS + eta, eta + 1) for s in range(1, 51)]
    torch.testing.assert_close(found.tolist(), expected, rtol=1e-12, atol=1e-12)


def test_buffers_are_averaged_and_counters_copied() -> None:
    model = nn.BatchNorm1d(3, dtype=torch.float64)
    model.register_buffer("mask", torch.zeros(3, dtype=torch.bool))
    averaged = AveragedModel(model, multi_avg_fn=anytime_average(3.0), use_buffers=True)
    points = trajectory(torch.float64, (4, 3))
    expected = averages(points, 3.0)
    for t, (point, mean) in enumerate(zip(points, expected, strict=True), start=1):
        for place, value in zip(
            (model.weight, model.bias, model.running_mean, model.running_var), point, strict=True
        ):
            place.data.copy_(value)
        model.num_batches_tracked.fill_(10 * t)
        model.mask.copy_(point[0] > 0)
        averaged.update_parameters(model)
        inner = averaged.module
        found = torch.stack([inner.weight, inner.bias, inner.running_mean, inner.running_var])
        torch.testing.assert_close(found, mean, rtol=1e-12, atol=1e-12)
        assert inner.num_batches_tracked == 10 * t
        assert torch.equal(inner.mask, point[0] > 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_types_keep_to_their_precision(dtype: torch.dtype) -> None:
    points = trajectory(dtype)
    exact = averages(points.double(), 8.0)[-1]
    found = averages(points, 8.0)[-1]
    assert found.dtype == dtype
    # Rounding errors of single updates are forgotten as fast as the points themselves.
    torch.testing.assert_close(found.double(), exact, rtol=0.0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("eta", [-1e-9, -1.0, -math.inf, math.nan, math.inf])
def test_invalid_eta(eta: float) -> None:
    """An infinite one would be no average at all: every weight ∞/∞."""
    with pytest.raises(ValueError, match="Invalid eta"):
        anytime_average(eta)


class Mixed(nn.Module):
    """Parameters of two types, a buffer and a counter."""

    def __init__(self, other: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.second = nn.Parameter(torch.zeros(2, dtype=other))
        self.norm = nn.BatchNorm1d(3, dtype=torch.float64)


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("other", [torch.float64, torch.float32])
def test_averaged_is_torchs(other: torch.dtype, use_buffers: bool) -> None:
    model = Mixed(other)
    options = {"multi_avg_fn": anytime_average(), "use_buffers": use_buffers}
    ours, torchs = Averaged(model, **options), AveragedModel(model, **options)
    for number in range(6):
        for tensor in model.state_dict().values():
            tensor.copy_(torch.full(tensor.shape, number**2))
        if number == 4:  # the state of one is the state of the other
            ours.load_state_dict(torchs.state_dict())
        for each in (ours, torchs):
            each.update_parameters(model)
        for name, value in torchs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], value), name
    assert not ours.module.first.grad_fn


def test_averaged_keeps_its_count_on_the_host() -> None:
    seen = []
    model = nn.Linear(2, 2)
    averaged = Averaged(model, multi_avg_fn=lambda means, currents, count: seen.append(count))
    for _ in range(3):
        averaged.update_parameters(model)
    assert seen == [averaged.n_averaged] * 2
    assert seen[0] is averaged.n_averaged
