"""When every batch is searched, and when a run is told that it is stuck."""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from wrapped_run import Run

from cgq import CGQ, LineSearch
from cgq.rules.base_rate import LIFT_TRIES, Lift
from cgq.rules.trust import BEGINNING, SETTLED, STUCK, Trust
from cgq.rules.when_to_search import coin


def quiet(losses: list[float], share: float = 0.8) -> Trust:
    """After as many searched steps of one share."""
    watch = Trust()
    for loss in losses:
        watch = watch.after_loss(loss).after_search(share).decided()
    return watch


def test_every_batch_until_the_share_has_settled() -> None:
    watch = Trust()
    assert watch.alert
    for _ in range(SETTLED - 1):
        watch = watch.after_loss(1.0).after_search(0.8).decided()
        assert watch.alert
    assert not watch.after_loss(1.0).after_search(0.8).decided().alert


def test_noise_is_no_alarm() -> None:
    """A tenth of the steps searched, noisy losses and shares, falling slowly: all is well."""
    draw, watch, alarms = random.Random(0), quiet([2.0] * SETTLED), 0
    for step in range(5000):
        watch = watch.after_loss(2.0 - step / 5000 + draw.gauss(0, 0.2))
        if step % 10 == 0:
            watch = watch.after_search(min(1.0, max(0.1, draw.gauss(0.7, 0.15)))).decided()
            alarms += watch.alert
    assert alarms <= 5


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_a_share_that_moves_is_an_alarm_until_it_rests(share: float) -> None:
    watch = quiet([2.0] * 200, share=0.5)
    alerts = []
    for _ in range(200):
        watch = watch.after_loss(2.0).after_search(share).decided()
        alerts.append(watch.alert)
    assert True in alerts[:16]
    assert not alerts[-1]


def test_a_loss_that_creeps_up_is_an_alarm() -> None:
    """From 2.303 to 2.32 within a hundred batches: so a plain VGG died."""
    draw, watch = random.Random(0), quiet([2.303] * SETTLED)
    for step in range(100):
        watch = watch.after_loss(2.303 + 0.017 * step / 100 + draw.gauss(0, 0.004))
    assert watch.after_search(0.8).decided().alert
    for _ in range(300):
        watch = watch.after_loss(2.2)
    assert not watch.after_search(0.8).decided().alert


def after(watch: Trust, losses: list[float], share: float = 0.8) -> Trust:
    for loss in losses:
        watch = watch.after_loss(loss).after_search(share).decided()
    return watch


@pytest.mark.parametrize("rho", [0.0005, 0.001, 0.005, 0.015])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_ceiling_is_earned_by_a_loss_that_falls(rho: float, sign: float) -> None:
    """Whatever the loss's sign; a loss below zero falls away from it."""
    watch = Trust()
    assert watch.ceiling(rho) == min(rho, 0.001)
    watch = after(watch, [sign * 2.0] * BEGINNING)
    assert watch.ceiling(rho) == min(rho, 0.001)
    for fallen in (0.04, 0.1, 0.2, 0.4):
        fell = after(watch, [2.0 * (sign - fallen)] * 200)
        assert fell.ceiling(rho) == pytest.approx(min(rho, max(0.001, fallen / 20)), rel=1e-6)
    back = after(fell, [sign * 2.0] * 60)
    assert back.ceiling(rho) == pytest.approx(min(rho, 0.001), rel=0.05)


def test_the_ceiling_is_earned_by_patience_where_the_loss_cannot_fall() -> None:
    watch = after(Trust(), [1.0] * 2499)
    assert 0.0049 < watch.ceiling(0.005) < 0.005
    assert after(watch, [1.0]).ceiling(0.005) == 0.005


def test_what_a_start_settles_at_counts_not_where_it_began() -> None:
    """Large outputs at first: the loss falls fast to a plateau, which earns nothing."""
    watch = after(Trust(), [4.0 * 0.7**step + 2.303 for step in range(100)])
    assert watch.ceiling(0.005) == 0.001


def test_losses_decide_only_at_a_search() -> None:
    """On an accelerator the host learns of them there: a run on the host must not differ."""
    watch = after(Trust(), [2.0] * BEGINNING)
    unsearched = watch
    for _ in range(50):
        unsearched = unsearched.after_loss(1.0)
    assert (unsearched.earned, unsearched.alert) == (watch.earned, watch.alert)
    assert unsearched.after_search(0.8).decided().ceiling(0.005) == 0.005


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


@pytest.mark.parametrize(
    "make",
    [
        lambda params: LineSearch(torch.optim.SGD(params, lr=0.1)),
        lambda params: CGQ(params, 1e9, max_relative_step=0.005, search_prob=0.1),
    ],
    ids=["LineSearch", "CGQ"],
)
def test_a_run_stuck_at_chance_is_told_once(make: Any) -> None:
    run = Plateau(make)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(STUCK + 300):
            run.optimizer.step(run.loss)
    assert [str(warning.message)[:17] for warning in told] == ["The loss is still"]
    assert "begin again with a third of max_relative_step" in str(told[0].message)
    assert told[0].filename == __file__


class Valley:
    """A long way down a smooth valley; `height` lifts the loss and gives no gradient."""

    RELATIVE: ClassVar[dict[str, Any]] = {"lr": 1e9, "max_relative_step": 0.001, "search_prob": 0.1}

    def __init__(self, **options: Any) -> None:
        self.weight = nn.Parameter(torch.linspace(1.0, 2.0, 8, dtype=torch.float64))
        self.optimizer = CGQ([self.weight], **options)
        self.height, self.calls = 0.0, 0

    def loss(self) -> Tensor:
        self.calls += 1
        return self.weight.square().sum() + self.height

    def searched(self, steps: int) -> list[bool]:
        """Which of so many steps were searched."""
        found = []
        for _ in range(steps):
            calls = self.calls
            self.optimizer.step(self.loss)
            search = self.optimizer.last_search
            assert self.calls - calls == 1 + (search.evaluations if search else 0)
            found.append(search is not None)
        return found


def test_cgq_under_a_relative_ceiling_searches_all_at_first_and_then_a_tenth() -> None:
    run = Valley(**Valley.RELATIVE)
    found = run.searched(500)
    assert all(found[:SETTLED])
    assert found[SETTLED:] == [coin(0, step, 0.1) for step in range(SETTLED, 500)]
    assert 500 + SETTLED < run.calls < 500 + 2 * (SETTLED + 60)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"search_prob": 0.1}, lambda step: step == 0 or coin(0, step, 0.1)),
        ({"search_prob": 0.0}, lambda step: step == 0),
        ({"search_prob": 0.0, "max_relative_step": 0.001, "lr": 1e9}, lambda step: step == 0),
        ({"search_prob": 1.0, "max_relative_step": 0.001, "lr": 1e9}, lambda step: True),
    ],
)
def test_else_its_coin_alone_decides_and_nothing_is_kept(options: Any, expected: Any) -> None:
    run = Valley(**options)
    assert run.searched(60) == [expected(step) for step in range(60)]
    for group in (*run.optimizer.state_dict()["param_groups"], run.optimizer.defaults):
        assert group.keys().isdisjoint(Trust._fields)


def test_a_group_may_set_the_relative_ceiling() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "max_relative_step": 0.001}]
    optimizer = CGQ(groups, 1e9, search_prob=0.1)
    for _ in range(20):
        optimizer.step(lambda: sum(weight.square().sum() for weight in weights))
        assert optimizer.last_search is not None
    first, second = (Trust.of(group) for group in optimizer.param_groups)
    assert first == second
    assert (first.losses, first.searches) == (20, 20)


@pytest.mark.parametrize("stop", [40, 150])
@pytest.mark.parametrize("saved", [True, False])
def test_resuming_equals_continuing_within_the_alert_and_after_it(stop: int, saved: bool) -> None:
    run, other = Valley(**Valley.RELATIVE), Valley(**Valley.RELATIVE)
    run.searched(stop)
    other.weight.data.copy_(run.weight.data)
    state = copy.deepcopy(run.optimizer.state_dict())
    if not saved:  # before there was a watch: it begins anew
        for group in state["param_groups"]:
            for name in Trust._fields:
                del group[name]
    other.optimizer.load_state_dict(state)
    expected, found = run.searched(120), other.searched(120)
    if saved:
        assert found == expected
        assert torch.equal(other.weight, run.weight)
        assert Trust.of(other.optimizer.param_groups[0]) == Trust.of(run.optimizer.param_groups[0])
    else:
        assert all(found[:SETTLED])
        assert not all(found)


def test_what_begins_to_die_is_searched_again() -> None:
    """The loss creeps up while the gradient says all is well: so a plain VGG died."""
    run = Valley(**Valley.RELATIVE)
    run.searched(200)
    found = []
    for step in range(200):
        run.height = 0.2 * step
        found += run.searched(1)
    assert sum(found[:20]) <= 5
    assert all(found[60:])
    assert sum(run.searched(500)[300:]) <= 40  # and no longer than need be


def test_a_rising_loss_brings_the_searches_back() -> None:
    run = Run(search_prob=0.3)
    for group in run.optimizer.param_groups:
        group.update(quiet([0.01] * 200, share=1.0)._asdict())  # far below what comes now
    assert not run.group["alert"]
    for _ in range(40):
        run.step()
    assert run.group["alert"]
