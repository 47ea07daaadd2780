"""bf16 and fp16: coarse losses, rejected parabolas, scaled gradients."""

from __future__ import annotations

import math
import re
import runpy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from test_accelerator import as_accelerator
from torch import Tensor, nn

from cgq import CGQ, quadratic_search, two_point
from cgq.evaluation.precision import dtypes_behind, rounding
from cgq.rules.first_trial import CLEAR, clear_trial

ROOT = Path(__file__).parents[1]
BF16 = torch.finfo(torch.bfloat16).eps


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 3))


def batches(count: int, size: int = 64) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    points = torch.randn(count, size, 2)
    labels = torch.bucketize(points.norm(dim=2), torch.tensor([0.8, 1.5]))
    return list(zip(points, labels, strict=True))


def loss_on(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def autocast(dtype: torch.dtype = torch.bfloat16) -> Any:
    return torch.autocast("cpu", dtype)


def numbers(model: nn.Module) -> Tensor:
    return torch.cat([param.detach().flatten() for param in model.parameters()])


# The search


def rough(phi: Callable[[float], float], digits: int) -> Callable[[float], float]:
    return lambda x: round(phi(x), digits)


@pytest.mark.parametrize("max_fits", [1, 3])
def test_a_parabola_within_the_noise_is_rejected_after_one_evaluation(max_fits):
    phi = rough(lambda x: 5.0 - 0.01 * x + 0.005 * x * x, 1)
    found = quadratic_search(
        phi, 5.0, -0.01, trial=0.1, ceiling=1.0, fit=two_point, max_fits=max_fits, noise=0.05
    )
    assert (found.rejected, found.accepted, found.step_size) == (True, False, 0.0)
    assert found.trial_steps == (0.1,)


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_a_parabola_that_stands_out_is_believed(noise):
    options: dict[str, Any] = {"trial": 0.1, "ceiling": 10.0, "fit": two_point, "max_fits": 3}
    found = quadratic_search(lambda x: (x - 2) ** 2 + 1, 5.0, -4.0, noise=noise, **options)
    assert found == quadratic_search(lambda x: (x - 2) ** 2 + 1, 5.0, -4.0, **options)
    assert found.step_size == pytest.approx(2.0)
    assert not found.rejected


def test_level_trials_may_still_tell_the_curvature():
    """φ(x) = φ(0) at x = 2α*: nothing has changed, yet the slope says where the minimum is."""
    found = quadratic_search(
        lambda x: (x - 1) ** 2 + 4, 5.0, -2.0, trial=2.0, ceiling=9.0, fit=two_point, max_fits=1,
        noise=0.5,
    )  # fmt: skip
    assert found.trial_losses[0] == found.loss
    assert (found.step_size, found.accepted) == (1.0, True)


def test_the_minimum_of_a_believed_parabola_survives_a_rejected_refit():
    """α* = 0.01 would lower the loss by less than the noise, which shows it higher instead."""
    noisy = {1.0: 5.97, 0.01: 5.004}
    options: dict[str, Any] = {"trial": 1.0, "ceiling": 1.0, "fit": two_point, "max_fits": 3}
    slope = -0.97 / 49.0  # makes A = 0.97·50/49 and α* = 0.01
    found = quadratic_search(lambda x: noisy[round(x, 9)], 5.0, slope, noise=0.01, **options)
    assert found.rejected
    assert found.step_size == found.trial_steps[1] == pytest.approx(0.01)
    assert found.evaluations == 2


def test_a_trial_backed_off_into_the_noise_is_taken():
    """It is finite and downhill; to leave the step out would leave out the next one as well."""
    found = quadratic_search(
        lambda x: math.inf if x > 0.5 else 5.0, 5.0, -0.01,
        trial=1.0, ceiling=1.0, fit=two_point, max_fits=3, noise=0.05,
    )  # fmt: skip
    assert found.rejected
    assert found.trial_steps == (1.0, 0.1)
    assert found.step_size == 0.1


def test_the_first_trial_is_long_enough_to_be_heard_but_under_the_ceiling():
    assert clear_trial(0.1, -1.0, 0.0, 0.3) == 0.1
    assert clear_trial(0.1, -1.0, 0.05, 0.3) == CLEAR * 0.05
    assert clear_trial(0.1, -1.0, 0.5, 0.3) == 0.3
    assert clear_trial(0.1, -5e-324, 0.5, math.inf) == math.inf


# What is seen of a loss


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_inside_a_closure_is_seen_in_the_graph_it_leaves(dtype):
    model, batch = network(), batches(1)[0]
    device = torch.device("cpu")
    with autocast(dtype):
        inside = loss_on(model, batch)
        assert dtypes_behind(1.0, device) == {dtype}
    assert inside.dtype == torch.float32
    assert rounding(dtypes_behind(inside, device)) == torch.finfo(dtype).eps
    inside.backward()
    assert rounding(dtypes_behind(inside, device)) == torch.finfo(dtype).eps
    clean = loss_on(model, batch)
    assert rounding(dtypes_behind(clean, device)) == torch.finfo(torch.float32).eps
    assert rounding(dtypes_behind(clean.double(), device)) == torch.finfo(torch.float32).eps
    assert rounding(dtypes_behind(loss_on(model.double(), (batch[0].double(), batch[1])), device)) \
        == torch.finfo(torch.float64).eps  # fmt: skip
    assert dtypes_behind(1.0, device) == dtypes_behind(torch.tensor(3), device) == set()


@pytest.mark.parametrize("count", [1, 40, 1000])
def test_many_losses_joined_hide_no_autocast(count):
    weight = torch.ones(2, 2, requires_grad=True)
    with autocast():
        parts = [(weight @ weight).float().sum() for _ in range(count)]
    for loss in torch.stack(parts).mean(), sum(parts[1:], parts[0]):
        assert dtypes_behind(loss, weight.device) == {torch.float32, torch.bfloat16}


# bf16


def trained(
    count: int, inside: bool, outside: bool, narrow: bool = False, **options: Any
) -> tuple[nn.Module, CGQ, list[Any]]:
    model, searches = network(), []
    optimizer = CGQ(model.parameters(), **options)
    for batch in batches(count):

        def closure() -> Tensor:
            with autocast() if inside else nullcontext():
                loss = loss_on(model, batch)
            return loss.bfloat16() if narrow else loss

        with autocast() if outside else nullcontext():
            optimizer.step(closure)
        searches.append(optimizer.last_search)
    return model, optimizer, searches


@pytest.mark.usefixtures("without_onednn")
def test_autocast_inside_and_outside_the_closure_are_one():
    inside, outside = (trained(30, choice, not choice, lr=0.1) for choice in (True, False))
    assert torch.equal(numbers(inside[0]), numbers(outside[0]))
    assert inside[2] == outside[2]
    assert inside[1].param_groups[0]["rejected_fits"] == outside[1].param_groups[0]["rejected_fits"]
    assert any(search.rejected for search in inside[2])
    assert not all(search.rejected for search in inside[2])


def closures(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Callable[..., Any]]:
    def only() -> Tensor:
        with autocast():
            return loss_on(model, batch)

    def tensor(backward: bool) -> Tensor:
        loss = only()
        if backward:
            loss.backward()
        return loss

    return {
        "only": only,
        "tensor": tensor,
        "number": lambda backward: tensor(backward).item(),
        "detached": lambda backward: 0.0 + tensor(backward).detach(),
    }


@pytest.mark.usefixtures("without_onednn")
def test_noise_is_rejected_whatever_the_closure_returns():
    ends = []
    for kind in closures(network(), batches(1)[0]):
        model = network()
        optimizer = CGQ(model.parameters(), lr=3e-4)
        for batch in batches(20):
            optimizer.step(closures(model, batch)[kind])
        assert optimizer.param_groups[0]["rejected_fits"] == 20, kind
        ends.append(numbers(model))
    assert all(torch.equal(end, ends[0]) for end in ends)


@pytest.mark.usefixtures("without_onednn")
def test_noise_is_rejected_and_counted_where_it_is_and_only_there():
    _, clean, searches = trained(20, False, False, lr=1e-3)
    assert clean.param_groups[0]["rejected_fits"] == 0
    assert not any(search.rejected for search in searches)
    _, coarse, searches = trained(20, True, False, lr=1e-3)
    assert coarse.param_groups[0]["rejected_fits"] == 20
    assert all(search.rejected and len(search.trial_steps) == 1 for search in searches)
    assert all(-search.slope * 1e-3 < BF16 * search.loss for search in searches)


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("lr", [1e-3, 0.1, 1.0])
def test_an_accelerator_rejects_what_the_host_rejects(lr, monkeypatch):
    """Its way is walked on the CPU; it measures ahead, but no further than the search goes."""
    _, host, searches = trained(20, True, False, lr=lr)
    as_accelerator(monkeypatch)
    _, device, again = trained(20, True, False, lr=lr)
    assert [s.rejected for s in again] == [s.rejected for s in searches]
    assert [s.trial_steps for s in again] == [
        pytest.approx(s.trial_steps, rel=1e-3) for s in searches
    ]
    assert device.param_groups[0]["rejected_fits"] == host.param_groups[0]["rejected_fits"]
    assert all(s.evaluations <= 4 for s in again)


@pytest.mark.usefixtures("without_onednn")
def test_a_rejected_batch_moves_as_an_unsearched_one():
    torch.manual_seed(0)
    batch = batches(1)[0]
    runs = []
    for searches in (True, False):
        model = network().eval()
        optimizer = CGQ(model.parameters(), lr=1e-3)
        for group in optimizer.param_groups:
            group["average"] = 7e-4

        def closure() -> Tensor:
            with autocast():
                return loss_on(model, batch)

        for _ in range(3):
            if searches:
                optimizer.step(closure)
            else:
                optimizer.zero_grad()
                closure().backward()
                optimizer.step()
        runs.append((numbers(model), optimizer.param_groups[0]))
    (searched, group), (bare, plain) = runs
    torch.testing.assert_close(searched, bare, rtol=0.0, atol=1e-7)  # in another order of additions
    assert group["rejected_fits"] == 3
    for name in ("step_size", "average", "beta", "steps", "trial_scale", "trial_searches"):
        assert group[name] == pytest.approx(plain[name], rel=1e-6), name
    assert (group["step_size"], group["average"], group["trial_searches"]) == (7e-4, 7e-4, 0)


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("options", [{"lr": 1.0}, {"lr": 1.0, "probe": 1e-3}], ids=str)
@pytest.mark.parametrize("narrow", [False, True], ids=["fp32 loss", "bf16 loss"])
def test_bf16_trains_as_well_as_fp32(narrow, options):
    """With a probe of 1e-3 the noise hides every parabola, unless the probe is lengthened."""
    reached = []
    for inside in (False, True):
        model, optimizer, _ = trained(300, inside, False, narrow and inside, **options)
        assert optimizer.param_groups[0]["skipped"] == 0
        model.eval()
        with torch.no_grad():
            losses = [loss_on(model, batch).item() for batch in batches(20)]
        reached.append(sum(losses) / len(losses))
    fp32, bf16 = reached
    assert fp32 < 0.3
    assert bf16 < fp32 + 0.1  # about 1 where noise is believed


# fp16 and the gradient scaler


def scaled_run(
    scaler: torch.amp.GradScaler,
    count: int,
    dtype: torch.dtype | None = None,
    overflowing: tuple[int, ...] = (),
) -> tuple[nn.Sequential, CGQ, list[float]]:
    model = network()
    model.append(nn.BatchNorm1d(3))
    optimizer = CGQ(model.parameters())
    scales = []
    for number, batch in enumerate(batches(count)):

        def closure(backward: bool) -> Tensor:
            with nullcontext() if dtype is None else autocast(dtype):
                loss = loss_on(model, batch)
            if backward:
                scaler.scale(loss).backward()
                if number in overflowing:
                    model[0].weight.grad[0, 0] = math.inf
                scaler.unscale_(optimizer)
            return loss

        optimizer.step(closure)
        scaler.update()
        scales.append(scaler.get_scale())
    return model, optimizer, scales


def test_a_scale_of_a_power_of_two_changes_nothing():
    """To the last bit, in fp32 as well as float64: multiplying by 2^k loses none."""
    off = torch.amp.GradScaler("cpu", enabled=False)
    plain, by_itself, _ = scaled_run(off, 10)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=4)
    model, optimizer, scales = scaled_run(scaler, 10)
    assert scales == [2.0**12] * 3 + [2.0**13] * 4 + [2.0**14] * 3
    assert torch.equal(numbers(model), numbers(plain))
    assert optimizer.last_search == by_itself.last_search
    assert optimizer.last_search is not None


def test_an_overflow_is_skipped_counted_and_lowers_the_scale():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model, optimizer, scales = scaled_run(scaler, 12, overflowing=(4, 5))
    assert scales == [1024.0] * 4 + [512.0] + [256.0] * 7
    assert optimizer.param_groups[0]["skipped"] == 2
    assert optimizer.param_groups[0]["steps"] == 10
    assert model[-1].num_batches_tracked == 10  # the skipped steps left no trace
    assert numbers(model).isfinite().all()


@pytest.mark.usefixtures("without_onednn")
def test_fp16_finds_its_scale_and_trains():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    model, optimizer, scales = scaled_run(scaler, 120, torch.float16)
    skipped = optimizer.param_groups[0]["skipped"]
    assert skipped >= 5  # gradients of fp16 overflow until the scale fits
    assert scales[-1] == 2.0 ** (30 - skipped)
    assert optimizer.param_groups[0]["steps"] == 120 - skipped
    model.eval()
    with torch.no_grad():
        losses = [loss_on(model, batch).item() for batch in batches(20)]
    assert sum(losses) / len(losses) < 0.5


def test_stepping_through_the_scaler_fails_aloud():
    """It unscales before the closure has made a gradient."""
    model, batch = network(), batches(1)[0]
    optimizer, scaler = CGQ(model.parameters()), torch.amp.GradScaler("cpu")
    before = numbers(model)

    def closure(backward: bool) -> Tensor:
        loss = loss_on(model, batch)
        if backward:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        return loss

    scaler.scale(torch.zeros(()))
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        scaler.step(optimizer, closure)
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(optimizer, closure=closure)
    assert torch.equal(numbers(model), before)
    fresh = torch.amp.GradScaler("cpu")
    fresh.scale(loss_on(model, batch)).backward()  # with gradients at hand it comes to the closure
    scaler = fresh
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        scaler.step(optimizer, closure)
    assert torch.equal(numbers(model), before)


# The page and the example


@pytest.mark.usefixtures("without_onednn")
def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "with_mixed_precision.py"), run_name="__main__")
    accuracies = re.findall(r"(\w+): test accuracy ([\d.]+)", capsys.readouterr().out)
    assert [name for name, _ in accuracies] == ["fp32", "bf16", "fp16"]
    assert all(float(accuracy) > 90 for _, accuracy in accuracies)
