"""When every batch is searched, and when a run is told that it is stuck."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from wrapped_run import Run

from cgq import CGQ, LineSearch
from cgq.policy import LIFT_TRIES, Lift
from cgq.watch import SETTLED, STUCK, Watch


def quiet(losses: list[float], share: float = 0.8) -> Watch:
    """After as many searched steps of one share."""
    watch = Watch()
    for loss in losses:
        watch = watch.after_loss(loss).after_search(share)
    return watch


def test_every_batch_until_the_share_has_settled() -> None:
    watch = Watch()
    assert watch.alert
    for _ in range(SETTLED - 1):
        watch = watch.after_loss(1.0).after_search(0.8)
        assert watch.alert
    assert not watch.after_loss(1.0).after_search(0.8).alert


def test_noise_is_no_alarm() -> None:
    """A tenth of the steps searched, noisy losses and shares, falling slowly: all is well."""
    draw, watch, alarms = random.Random(0), quiet([2.0] * SETTLED), 0
    for step in range(5000):
        watch = watch.after_loss(2.0 - step / 5000 + draw.gauss(0, 0.2))
        if step % 10 == 0:
            watch = watch.after_search(min(1.0, max(0.1, draw.gauss(0.7, 0.15))))
            alarms += watch.alert
    assert alarms <= 5


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_a_share_that_moves_is_an_alarm_until_it_rests(share: float) -> None:
    watch = quiet([2.0] * 200, share=0.5)
    alerts = []
    for _ in range(200):
        watch = watch.after_loss(2.0).after_search(share)
        alerts.append(watch.alert)
    assert True in alerts[:16]
    assert not alerts[-1]


def test_a_loss_that_creeps_up_is_an_alarm() -> None:
    """From 2.303 to 2.32 within a hundred batches: so a plain VGG died."""
    draw, watch = random.Random(0), quiet([2.303] * SETTLED)
    for step in range(100):
        watch = watch.after_loss(2.303 + 0.017 * step / 100 + draw.gauss(0, 0.004))
    assert watch.after_search(0.8).alert
    for _ in range(300):
        watch = watch.after_loss(2.2)
    assert not watch.after_search(0.8).alert


def test_what_is_not_finite_tells_nothing() -> None:
    watch = quiet([1.0] * 5)
    assert watch.after_loss(float("nan")).after_loss(float("inf")) == watch


@pytest.mark.parametrize(
    ("start", "end", "stuck"), [(2.303, 2.3026, True), (2.3, 2.2, False), (-1.0, -2.0, False)]
)
def test_stuck_is_who_has_not_fallen(start: float, end: float, stuck: bool) -> None:
    watch = quiet([start] * 20 + [end] * (STUCK - 21))
    assert not watch.is_stuck  # not yet
    assert watch.after_loss(end).is_stuck == stuck


def test_a_rate_that_is_not_heeded_is_left_alone() -> None:
    lift, lifts = Lift(), []
    for _ in range(20):
        lift = lift.after(1000.0)
        lifts.append(lift.lift)
    assert lifts[LIFT_TRIES:] == [1.0] * (20 - LIFT_TRIES)
    assert Lift(1024.0, 0).after(1 / 1000).lift == 1.0
    assert Lift(1.0, 0).after(1e-9).lift == 1.0


class Plateau:
    """A loss that no weight changes, but for a slope too slight to matter."""

    def __init__(self, make: Any) -> None:
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.optimizer = make([self.weight])

    def loss(self) -> Tensor:
        return 2.3 + 1e-7 * self.weight.square().sum()


def test_a_run_stuck_at_chance_is_told_once() -> None:
    run = Plateau(lambda params: LineSearch(torch.optim.SGD(params, lr=0.1)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(STUCK + 300):
            run.optimizer.step(run.loss)
    assert [str(warning.message)[:17] for warning in told] == ["The loss is still"]
    assert "max_relative_step" in str(told[0].message)
    assert told[0].filename == __file__


def searches(optimizer: Any, run: Run, steps: int) -> int:
    found = 0
    for _ in range(steps):
        optimizer.step(run.closure)
        found += optimizer.last_search is not None
    return found


def test_cgq_searches_by_its_coin_alone() -> None:
    run = Run()
    params = list(run.model.parameters())
    for options in ({}, {"max_relative_step": 0.01}):
        assert searches(CGQ(params, 10.0, search_prob=0.1, **options), run, 60) <= 15
        assert searches(CGQ(params, 10.0, search_prob=0.0, **options), run, 20) == 1
    assert searches(LineSearch(torch.optim.SGD(params, 0.1)), run, 60) == 60


def test_a_rising_loss_brings_the_searches_back() -> None:
    run = Run(search_prob=0.3)
    for group in run.optimizer.param_groups:
        group.update(quiet([0.01] * 200, share=1.0)._asdict())  # far below what comes now
    assert not run.group["alert"]
    for _ in range(40):
        run.step()
    assert run.group["alert"]
