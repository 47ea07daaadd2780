"""Mechanic: the formula that the library is taken for, and checkpoints of it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cgqbench.methods import chosen
from cgqbench.methods.readings import step_size
from cgqbench.methods.schedules import Budget


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    """The library keeps its numbers in torch's default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Run:
    """A quadratic with two parameters, and Mechanic."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(5, 1)
        self.inputs, self.targets = torch.randn(20, 5), torch.randn(20, 1)
        self.optimizer = chosen("mechanic", "mlp").optimizer(self.model, Budget(1, 1), 0)

    def loss(self) -> Tensor:
        return nn.functional.mse_loss(self.model(self.inputs), self.targets)

    def closure(self, backward: bool = True) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss

    def step(self) -> Any:
        return self.optimizer.step(self.closure)

    def theta(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()

    def gradient(self) -> Tensor:
        grads = torch.autograd.grad(self.loss(), list(self.model.parameters()))
        return nn.utils.parameters_to_vector(grads)


def test_a_plain_reading_of_the_formula() -> None:
    """θ = θ₀ + ΣsΔ, where Δ adds up AdamW's updates and bettors on h = ⟨Δ, g + decay⟩ give s.

    As in the library, Δ is found again from θ, and the decay is taken where AdamW would be.
    """
    run, eps, decay = Run(), 1e-8, 0.01
    theta0, moment, square = run.theta(), torch.zeros(6), torch.zeros(6)
    beta = torch.tensor([0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999])
    s, m, v, r = torch.zeros(6), torch.full((6,), 1e-6), torch.zeros(6), torch.zeros(6)
    rates = []
    for t in range(1, 61):
        theta, g, loss = run.theta(), run.gradient(), run.loss()
        moment, square = 0.9 * moment + 0.1 * g, 0.999 * square + 0.001 * g**2
        adam = (moment / (1 - 0.9**t)) / ((square / (1 - 0.999**t)).sqrt() + eps)
        u = -adam - 0.01 * theta
        delta = (theta - theta0) / (s.sum() + eps)
        there = theta + u
        h = delta @ (g + decay * s.sum() * g.norm() * there / (there.norm() + eps))
        m, v = torch.maximum(beta * m, h.abs()), beta**2 * v + h**2
        r = (beta * r - s * h).clamp(min=0)
        s = (m * 1e-8 / 6 + r) / (v.sqrt() + eps)
        assert run.step() == loss
        expected = theta0 + s.sum() * (delta + u)
        torch.testing.assert_close(run.theta(), expected, rtol=1e-10, atol=1e-14)
        rates.append(float(step_size(run.optimizer)))  # type: ignore[arg-type]
        assert rates[-1] == pytest.approx(s.sum().item(), rel=1e-12)
    assert rates[-1] > 1000 * rates[0]  # so that all terms have counted


@pytest.mark.parametrize("stop", [0, 1, 20])
def test_resuming_equals_continuing(stop: int) -> None:
    straight = Run()
    for _ in range(stop):
        straight.step()
    file = io.BytesIO()
    torch.save((straight.model.state_dict(), straight.optimizer.state_dict()), file)
    for _ in range(20):
        straight.step()
    file.seek(0)
    model, optimizer = torch.load(file, weights_only=True)
    resumed = Run()
    resumed.step()  # what it knows by then must be forgotten
    resumed.model.load_state_dict(model)
    resumed.optimizer.load_state_dict(optimizer)
    for _ in range(20):
        resumed.step()
    assert torch.equal(resumed.theta(), straight.theta())
    assert step_size(resumed.optimizer) == step_size(straight.optimizer)


def test_gradients_at_hand_will_do() -> None:
    one, other = Run(), Run()
    for _ in range(5):
        one.step()
        other.closure()
        assert other.optimizer.step() is None
    assert torch.equal(one.theta(), other.theta())


def test_a_closure_that_raises_changes_nothing() -> None:
    run = Run()
    run.step()
    before = run.theta()

    def closure() -> Tensor:
        raise KeyError

    with pytest.raises(KeyError):
        run.optimizer.step(closure)  # type: ignore[arg-type]
    assert torch.equal(run.theta(), before)
    assert torch.is_grad_enabled()
