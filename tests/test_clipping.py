"""A clipped gradient makes the direction, and the slope along it is still the loss's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cgq import CGQ

Closure = Callable[..., Any]
Clip = Callable[[Any], Any]


def by_norm(params: Any) -> None:
    nn.utils.clip_grad_norm_(params, 0.05)


def by_value(params: Any) -> None:
    nn.utils.clip_grad_value_(params, 0.02)


def replaced(params: Any) -> None:
    for param in params:
        param.grad = param.grad.sign() * 0.01


def problem() -> tuple[nn.Sequential, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    inputs, targets = torch.randn(16, 4).double(), 1.0 + torch.randn(16, 1).double()
    return model, lambda: nn.functional.mse_loss(model(inputs), targets)


def asked(optimizer: CGQ, model: nn.Module, loss_of: Callable[[], Tensor], clip: Clip) -> Closure:
    def closure(backward: bool) -> Tensor:
        loss = loss_of()
        if backward:
            loss.backward()
            with optimizer.clipping():
                clip(list(model.parameters()))
        return loss

    return closure


def classic(optimizer: CGQ, model: nn.Module, loss_of: Callable[[], Tensor], clip: Clip) -> Closure:
    def closure() -> Tensor:
        optimizer.zero_grad()
        return asked(optimizer, model, loss_of, clip)(True)

    return closure


def at_hand(optimizer: CGQ, model: nn.Module, loss_of: Callable[[], Tensor], clip: Clip) -> Closure:
    optimizer.zero_grad()
    asked(optimizer, model, loss_of, clip)(True)
    return lambda: loss_of().item()


def values(model: nn.Module) -> list[Tensor]:
    return [param.detach().clone() for param in model.parameters()]


def measured_slope(
    model: nn.Module, loss_of: Callable[[], Tensor], before: list[Tensor], step: float
) -> float:
    """(φ(h) - φ(-h)) / 2h along the line from `before` to where the model stands."""
    after, h, ends = values(model), 1e-5, []
    with torch.no_grad():
        for alpha in (h, -h):
            for param, start, end in zip(model.parameters(), before, after, strict=True):
                param.copy_(start + (end - start) * (alpha / step))
            ends.append(loss_of().item())
        for param, end in zip(model.parameters(), after, strict=True):
            param.copy_(end)
    return (ends[0] - ends[1]) / (2 * h)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True, "max_relative_step": 0.05},
        {"nesterov": True, "momentum": 0.5},
    ],
    ids=["defaults", "decay", "decoupled", "nesterov"],
)
@pytest.mark.parametrize("clip", [by_norm, by_value, replaced])
@pytest.mark.parametrize("kind", [asked, classic, at_hand])
@pytest.mark.filterwarnings("ignore:This closure runs backward")
def test_slope_is_the_derivative_of_the_measured_loss(
    kind: Callable[..., Closure], clip: Clip, options: dict[str, Any]
) -> None:
    model, loss_of = problem()
    groups = [{"params": model[0].parameters(), "lr": 1.0}, {"params": model[2].parameters()}]
    optimizer = CGQ(groups, lr=2.0, **options)
    for _ in range(4):
        before, loss = values(model), loss_of().item()
        assert float(optimizer.step(kind(optimizer, model, loss_of, clip))) == loss
        search = optimizer.last_search
        assert search is not None
        assert search.loss == loss
        step = optimizer.param_groups[1]["step_size"]
        assert search.slope == pytest.approx(
            measured_slope(model, loss_of, before, step), rel=1e-6, abs=1e-12
        )


def test_clipping_by_norm_is_to_search_the_loss_scaled_alike() -> None:
    runs = []
    for scaled in (False, True):
        model, loss_of = problem()
        optimizer = CGQ(model.parameters(), lr=5.0)
        scale = 1.0

        def closure(backward: bool) -> float:
            nonlocal scale
            loss = loss_of()
            if backward:
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).item()
                scale = min(1.0, 0.1 / (norm + 1e-6))
            return scale * loss.item()

        for _ in range(8):
            optimizer.step(
                closure
                if scaled
                else asked(
                    optimizer, model, loss_of, lambda params: nn.utils.clip_grad_norm_(params, 0.1)
                )
            )
        runs.append(values(model))
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-10, atol=1e-11)


def test_a_search_finds_the_same_point_however_short_the_gradient() -> None:
    ends = []
    for clip in (lambda params: None, by_norm):
        weight = nn.Parameter(torch.tensor([3.0, -1.0], dtype=torch.float64))
        holder = nn.ParameterList([weight])
        curvature = torch.tensor([1.0, 4.0], dtype=torch.float64)
        optimizer = CGQ(holder.parameters(), lr=1e3, momentum=0.0)
        for _ in range(3):
            optimizer.step(
                asked(optimizer, holder, lambda: (curvature * weight.square()).sum(), clip)
            )
        ends.append(weight.detach().clone())
    # A trial of 0.1 times a short direction moves little, which costs the fit some digits.
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=0)


def test_clipping_holds_for_the_gradients_it_changed_only() -> None:
    model, loss_of = problem()
    optimizer = CGQ(model.parameters(), lr=2.0)
    loss_of().backward()
    with optimizer.clipping():
        by_norm(model.parameters())
    before = values(model)
    optimizer.step(loss_of)  # makes a gradient of its own
    assert optimizer.last_search is not None
    step = optimizer.param_groups[0]["step_size"]
    slope = measured_slope(model, loss_of, before, step)
    assert optimizer.last_search.slope == pytest.approx(slope, rel=1e-6)


def test_clipping_twice_keeps_the_gradient_of_the_loss() -> None:
    runs = []
    for clips in ([by_norm], [lambda params: nn.utils.clip_grad_norm_(params, 0.2), by_norm]):
        model, loss_of = problem()
        optimizer = CGQ(model.parameters(), lr=2.0)

        def closure(backward: bool) -> Tensor:
            loss = loss_of()
            if backward:
                loss.backward()
                for clip in clips:
                    with optimizer.clipping():
                        clip(model.parameters())
            return loss

        optimizer.step(closure)
        assert optimizer.last_search is not None
        runs.append(optimizer.last_search.slope)
    assert runs[0] == pytest.approx(runs[1], rel=1e-4)  # torch's 1e-6 in the norm enters twice


def test_a_block_that_raises_clips_nothing() -> None:
    model, loss_of = problem()
    optimizer = CGQ(model.parameters())
    loss_of().backward()
    with pytest.raises(ArithmeticError), optimizer.clipping():
        raise ArithmeticError
    grads = [param.grad for param in model.parameters()]
    optimizer.step(lambda: loss_of().item())
    squared = sum(float(grad.square().sum()) for grad in grads if grad is not None)
    assert optimizer.last_search is not None
    assert optimizer.last_search.slope == pytest.approx(-squared)


def test_clipping_without_a_search_is_torchs() -> None:
    model, loss_of = problem()
    optimizer = CGQ(model.parameters(), momentum=0.0)
    before = values(model)
    asked(optimizer, model, loss_of, by_norm)(True)
    optimizer.step()
    for param, start in zip(model.parameters(), before, strict=True):
        assert param.grad is not None
        assert torch.equal(param.detach(), start - 0.1 * param.grad)


def test_what_is_added_to_a_gradient_that_was_none_has_no_slope() -> None:
    used, unused = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    holder = nn.ParameterList([used, unused])

    def decay(params: Any) -> None:
        for param in params:
            param.grad = 0.5 * param.detach()

    optimizer = CGQ(holder.parameters(), lr=1e3)
    optimizer.step(asked(optimizer, holder, lambda: 1.0 + used.square().sum(), decay))
    assert optimizer.last_search is not None
    assert optimizer.last_search.slope == pytest.approx(-0.5 * 2 * 2)
    torch.testing.assert_close(holder[0], torch.zeros_like(used), rtol=0, atol=1e-9)
    torch.testing.assert_close(holder[1], torch.zeros_like(unused), rtol=0, atol=1e-9)


def test_complex_parameters_have_a_slope_too() -> None:
    weight = nn.Parameter(torch.tensor([3.0 + 1.0j, -1.0j], dtype=torch.complex128))
    holder = nn.ParameterList([weight])

    def loss_of() -> Tensor:
        return (weight - 1.0).abs().square().sum()

    optimizer = CGQ(holder.parameters(), lr=1e3)
    optimizer.step(asked(optimizer, holder, loss_of, lambda params: params[0].grad.mul_(0.1)))
    assert optimizer.last_search is not None
    assert optimizer.last_search.slope == pytest.approx(-0.1 * 4 * 7)  # -c·|g|²
    assert loss_of().item() == pytest.approx(0.0, abs=1e-20)


def test_an_exception_in_the_block_does_not_spoil_the_slope() -> None:
    slopes = []
    for raises in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 1).double()
        inputs = torch.randn(16, 4).double()
        optimizer = CGQ(model.parameters())

        def closure(backward: bool) -> Tensor:
            loss = (model(inputs) - 1).square().mean()
            if backward:
                loss.backward()
                with contextlib.suppress(ZeroDivisionError), optimizer.clipping():
                    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                    if raises:
                        raise ZeroDivisionError
            return loss

        optimizer.step(closure)
        assert optimizer.last_search is not None
        slopes.append(optimizer.last_search.slope)
    assert slopes[0] == slopes[1]
