"""The anytime average against its formula, through torch's own AveragedModel."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import cgq.average
from cgq import AnytimeAverage, anytime_average, join

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


class Network(nn.Module):
    """Tied weights, numbers of two kinds, buffers that count."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.tied = self.first
        self.exact = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.tied(self.norm(self.first(x))) + self.exact.sum()


def moved(model: nn.Module, times: int) -> Iterator[nn.Module]:
    """The model, after each of some changes of its weights and statistics."""
    torch.manual_seed(0)
    for _ in range(times):
        for parameter in model.parameters():
            parameter.data.copy_(torch.randn_like(parameter))
        model(torch.randn(4, 3))
        yield model


def same(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def assert_is_torchs_own(model: nn.Module, given: Any, steps: int) -> None:
    """To the bit, where the averages are `given` the model or what wraps it."""
    slow = AveragedModel(model, multi_avg_fn=anytime_average())
    quick = AnytimeAverage(model)
    for _ in moved(model, steps):
        slow.update_parameters(given)
        quick.update_parameters(given)
        assert same(quick, slow)


def test_the_quick_average_is_torchs_own_to_the_bit() -> None:
    model = Network()
    assert_is_torchs_own(model, model, 20)


def test_the_quick_average_goes_on_from_a_checkpoint_or_a_copy() -> None:
    model = Network()
    quick = AnytimeAverage(model)
    for _ in moved(model, 5):
        quick.update_parameters(model)
    loaded, copied = AnytimeAverage(Network()), copy.deepcopy(quick)
    loaded.load_state_dict(quick.state_dict())
    for _ in moved(model, 5):
        for average in (quick, loaded, copied):
            average.update_parameters(model)
    assert same(loaded, quick)
    assert same(copied, quick)
    assert int(quick.n_averaged) == 10


def test_the_quick_average_follows_a_model_that_moves() -> None:
    """`model.to` replaces tensors, and another model may follow the first."""
    model, other = Network(), Network()
    slow = AveragedModel(model, multi_avg_fn=anytime_average())
    quick = AnytimeAverage(model)
    for _ in moved(model, 3):
        quick.update_parameters(model)
        slow.update_parameters(model)
    model._apply(lambda tensor: tensor.clone())
    for network in (model, other):
        for _ in moved(network, 3):
            quick.update_parameters(network)
            slow.update_parameters(network)
    assert same(quick, slow)


def test_the_quick_average_keeps_no_copy_of_the_model_in_its_own() -> None:
    model = Network()
    quick = AnytimeAverage(model)
    quick.update_parameters(model)
    assert len(list(quick.parameters())) == len(list(model.parameters()))
    assert copy.deepcopy(quick)._found is None


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, torch.jit.script])
def test_the_quick_average_takes_the_model_and_what_wraps_it(wrap: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is on its way out
        wrapped = wrap(model)
    assert_is_torchs_own(model, wrapped, 3)


def test_the_quick_average_forgets_what_it_began_with() -> None:
    model = nn.Linear(2, 2)
    quick = AnytimeAverage(model)
    nn.init.constant_(quick.module.weight, float("nan"))
    quick.update_parameters(model)
    assert torch.equal(quick.module.weight, model.weight)


def test_another_model_does_not_fit() -> None:
    model = nn.Linear(2, 2)
    quick = AnytimeAverage(model)
    quick.update_parameters(model)
    with pytest.raises(ValueError, match=r"has 1 tensors where the average has 2. Update it with"):
        quick.update_parameters(nn.Linear(2, 2, bias=False))


def test_one_kernel_takes_in_parameters_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere than on a host; wherever they lie, the mean is the same."""
    monkeypatch.setattr(cgq.average, "_launches", lambda device: True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).double()
    params = list(model.parameters())
    join(params)
    quick = AnytimeAverage(model)
    slow = AveragedModel(model, multi_avg_fn=anytime_average(8.0), use_buffers=False)
    taken: list[int] = []
    lerp = torch._foreach_lerp_

    def counted(means: list[Tensor], *others: Any) -> None:
        taken.append(len(means))
        lerp(means, *others)

    for number in range(20):
        if number in (10, 15):  # moved apart, and together again, by somebody else
            for param in params:
                param.data = param.data.clone()
            if number == 15:
                join(params)
        for param in params:
            param.data.add_(torch.randn_like(param))
        model(torch.randn(4, 4).double())
        slow.update_parameters(model)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "_foreach_lerp_", counted)
            quick.update_parameters(model)
        for mine, its in zip(quick.module.parameters(), slow.module.parameters(), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-14, atol=1e-14)
        assert torch.equal(quick.module[1].running_mean, model[1].running_mean)
    assert taken == [1] * 9 + [len(params)] * 5 + [1] * 5
    other = AnytimeAverage(model)
    other.load_state_dict(copy.deepcopy(quick.state_dict()))
    for averaged in (quick, other):
        averaged.update_parameters(model)
    assert all(map(torch.equal, quick.parameters(), other.parameters()))
