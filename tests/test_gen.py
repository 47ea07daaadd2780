"""GeN: a slow, obvious twin, Newton's rate on a quadratic, honest probes and checkpoints."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from test_accelerator import as_accelerator
from torch import Tensor, nn

from cgqbench.methods.baselines import GeN


class Run:
    """A regression by batches that are always the same, and GeN around AdamW."""

    def __init__(self, lr: float = 1e-3, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)
        ).double()
        self.unused = nn.Parameter(torch.ones(2).double())
        first, *others = self.model.parameters()
        groups = [{"params": [first], "lr": lr}, {"params": [*others, self.unused], "lr": lr / 2}]
        self.optimizer = GeN(torch.optim.AdamW(groups), model=self.model, **options)
        self.calls = self.steps = 0

    def loss(self, number: int) -> Tensor:
        draw = torch.Generator().manual_seed(number)
        inputs = torch.randn(16, 4, generator=draw).double()
        self.calls += 1
        return nn.functional.mse_loss(self.model(inputs).squeeze(1), inputs[:, 0] * inputs[:, 1])

    def step(self) -> int:
        """One step; how many passes it took."""
        calls = self.calls
        self.optimizer.step(lambda: self.loss(self.steps))
        self.steps += 1
        return self.calls - calls

    def rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def values(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


# A slow, obvious twin


class Quadratic:
    """Batches ½(θ - c)·A(θ - c), each with a c of its own."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(1)
        root = torch.randn(6, 6, generator=draw).double()
        self.A = root @ root.T + 0.1 * torch.eye(6).double()
        self.theta = nn.Parameter(torch.randn(6, generator=draw).double())

    def away(self, number: int, theta: Tensor) -> Tensor:
        draw = torch.Generator().manual_seed(100 + number)
        return theta - 0.3 * torch.randn(6, generator=draw).double()

    def loss(self, number: int, theta: Tensor) -> Tensor:
        away = self.away(number, theta)
        return 0.5 * away @ self.A @ away


def test_twin() -> None:
    lr = 0.2  # near which all three kinds of parabola are met
    ours, twin = Quadratic(), Quadratic()
    optimizer = GeN(torch.optim.AdamW([ours.theta], lr=lr))
    base = torch.optim.AdamW([twin.theta], lr=lr)
    start, kinds = None, set()
    for t in range(1, 161):
        optimizer.step(lambda: ours.loss(t, ours.theta))

        if start is not None:
            end = twin.theta.detach().clone()
            d = start - end
            ahead, here, behind = (twin.loss(t, start + x * d).item() for x in (-1, 0, 1))
            A, b = ahead - 2 * here + behind, (behind - ahead) / 2
            kind = "left"
            if A > 0 and b > 0:
                kind = "followed" if 0.5 <= b / A <= 2 else "bounded"
                rate = base.param_groups[0]["lr"]
                wanted = min(max(b / A * rate, rate / 2), 2 * rate)
                base.param_groups[0]["lr"] = 0.9 * rate + 0.1 * wanted
            kinds.add(kind)
            assert optimizer.last_search is not None
            assert optimizer.last_search.accepted == (kind != "left")
            assert optimizer.last_search.capped == (kind == "bounded")
            start = None
        if t % 8 == 0:
            start = twin.theta.detach().clone()
        base.zero_grad()
        twin.loss(t, twin.theta).backward()
        base.step()

        rate = optimizer.param_groups[0]["lr"]
        assert rate == pytest.approx(base.param_groups[0]["lr"], rel=1e-9)
        torch.testing.assert_close(ours.theta, twin.theta, rtol=1e-9, atol=1e-12)
    assert kinds == {"left", "followed", "bounded"}


def test_on_a_quadratic_the_rate_is_newtons() -> None:
    """η* = ∇f·d / d·Hd, where d is the gradient."""
    problem = Quadratic()
    optimizer = GeN(torch.optim.SGD([problem.theta], lr=0.03), every=1, smoothing=0.0)
    within, newton = 0, math.nan
    for _ in range(20):
        g = problem.A @ problem.away(0, problem.theta.detach())
        optimizer.step(lambda: problem.loss(0, problem.theta))
        search = optimizer.last_search
        if search is not None and not search.capped:
            within += 1
            assert optimizer.param_groups[0]["lr"] == pytest.approx(newton, rel=1e-6)
        newton = (g @ g / (g @ problem.A @ g)).item()
    assert within > 5


# Honest probes


def test_two_passes_more_after_every_eighth_step_leave_no_trace() -> None:
    run = Run()
    reference = Run()
    for step in range(1, 26):
        reference.model.load_state_dict(run.values())
        noise = torch.get_rng_state()
        reference.loss(run.steps)
        buffers = {name: b.clone() for name, b in reference.model.named_buffers()}
        after = torch.get_rng_state()
        torch.set_rng_state(noise)
        measured = step > 1 and step % 8 == 1
        assert run.step() == (3 if measured else 1)
        assert (run.optimizer.last_search is not None) == measured
        assert torch.equal(torch.get_rng_state(), after)
        assert_same(dict(run.model.named_buffers()), buffers)


def test_a_probe_that_raises_leaves_everything_in_place() -> None:
    run = Run(every=1)
    run.step()
    before, rates = run.values(), run.rates()
    calls = run.calls

    def closure() -> Tensor:
        loss = run.loss(1)
        if run.calls == calls + 3:
            raise KeyError
        return loss

    with pytest.raises(KeyError):
        run.optimizer.step(closure)
    for name, param in run.model.named_parameters():
        assert torch.equal(param, before[name])
    assert run.rates() == rates
    assert torch.is_grad_enabled()
    run.step()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_probe_that_is_not_finite_changes_no_rate(value: float) -> None:
    run = Run(every=1)
    run.step()
    rates, calls = run.rates(), run.calls

    def closure() -> Tensor:
        loss = run.loss(1)
        return loss * value if run.calls == calls + 2 else loss

    run.optimizer.step(closure)
    assert run.rates() == rates
    assert run.optimizer.last_search is not None
    assert not run.optimizer.last_search.accepted


def test_groups_keep_their_proportion_and_what_is_unused_stays() -> None:
    run = Run()
    for _ in range(20):
        run.step()
    one, other = run.rates()
    assert one == pytest.approx(2 * other, rel=1e-12)
    assert one != 1e-3
    assert torch.equal(run.unused, torch.ones(2).double())
    assert run.unused not in run.optimizer.state


def test_without_a_loss_nothing_is_measured() -> None:
    run = Run(every=1)
    for number in range(3):
        run.optimizer.zero_grad()
        run.loss(number).backward()
        before = run.values()
        assert run.optimizer.step() is None
        assert not torch.equal(run.model[0].weight, before["0.weight"])
    assert run.rates() == [1e-3, 5e-4]
    assert run.optimizer.last_search is None


def test_the_same_steps_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    host, other = Run(every=2), Run(every=2)
    for step in range(9):
        torch.manual_seed(step)
        host.step()
        with monkeypatch.context() as patch:
            as_accelerator(patch)
            torch.manual_seed(step)
            other.step()
    assert_same(other.values(), host.values())


# Checkpoints


@pytest.mark.parametrize("stop", [0, 7, 8, 9])
def test_resuming_equals_continuing(stop: int) -> None:
    straight = Run()
    for _ in range(stop):
        straight.step()
    file = io.BytesIO()
    states = straight.model.state_dict(), straight.optimizer.state_dict(), torch.get_rng_state()
    torch.save(states, file)
    for _ in range(20):
        straight.step()
    file.seek(0)
    model, optimizer, noise = torch.load(file, weights_only=True)
    resumed = Run()
    resumed.model.load_state_dict(model)
    resumed.optimizer.load_state_dict(optimizer)
    torch.set_rng_state(noise)
    resumed.steps = stop
    for _ in range(20):
        resumed.step()
    assert_same(resumed.values(), straight.values())
    assert resumed.rates() == straight.rates() != Run().rates()


@pytest.mark.parametrize(
    "options", [{"every": 0}, {"every": 2.5}, {"smoothing": 1.0}, {"smoothing": math.nan}]
)
def test_invalid_settings_are_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"Invalid {name} value"):
        Run(**options)
