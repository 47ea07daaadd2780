"""The trust region of LineSearch: what widens it, what narrows it, and what it is measured by."""

from __future__ import annotations

import copy
import math
import random
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from wrapped_run import Run

from cgq import LineSearch, QuadraticSearch, Search, Start
from cgq.rules.trust import PATIENCE, SAFE, Trust
from cgq.rules.trust_region import (
    AT_ONCE,
    FAMILIAR,
    LARGE_OUTPUTS,
    LEAP,
    NEWS,
    UNKNOWN,
    Region,
    Tried,
    straightness,
)

RHO = 0.005


def trial(share: float, taken: bool = True) -> Search:
    """A search whose trial of 0.1 brought this share of what the slope promised."""
    step = 0.1 if taken else 0.04
    return Search(1.0, -2.0, 0.0, (0.1,), (1.0 - 0.2 * share,), step, taken, capped=taken)


def after(
    region: Region,
    count: int,
    *,
    share: float = 0.9,
    agreement: float = 0.0,
    own: float = 0.4,
    noise: float = 0.0,
    earned: float = SAFE,
    losses: int = 1000,
    taken: bool = True,
    rho: float = RHO,
    fade: float = 1.0,
    age: float = 0.0,
    apart: int = 1,
    rate: float = math.nan,
    searches: int = 1000,
    plateau: float = 0.0,
    recent: float = 0.0,
) -> Region:
    trust = Trust(
        losses=losses,
        earned=earned,
        searches=searches,
        plateau_loss=plateau,
        recent_loss=recent,
    )
    for number in range(count):
        region = region.after(
            trial(share, taken),
            agreement + noise * (-1) ** number,
            own,
            steps=region.judged_at + apart,
            trust=trust,
            rho=rho,
            fade=fade,
            age=age,
            tried=Tried(rate, region.ceiling(rho, fade, age)),
        )
    return region


def judged(radius: float, agreement: float = 0.0) -> Region:
    """One that has been so for long."""
    return Region(radius, agreement, 0.4, 0.0, 0.9, agreements=50, lines=50, judged_at=10**6)


@pytest.mark.parametrize("share", [-3.0, -0.5, 0.0, 0.5, 1.0, 7.0])
def test_straightness_is_what_came_of_what_was_promised(share: float) -> None:
    assert straightness(trial(share)) == pytest.approx(min(2.0, max(-2.0, share)))
    higher = Search(1.0, -2.0, 0.0, (0.1,), (math.nan,), 0.0, accepted=False, capped=False)
    assert straightness(higher) == -2.0


@pytest.mark.parametrize(
    ("slope", "steps"), [(-2.0, ()), (-2.0, (0.0,)), (0.0, (0.1,)), (1.0, (0.1,))]
)
def test_where_nothing_was_promised_no_line_was_measured(
    slope: float, steps: tuple[float, ...]
) -> None:
    """As searches of a user's may return it."""
    search = Search(1.0, slope, 0.0, steps, (1.0,) * len(steps), 0.1, accepted=True, capped=False)
    assert math.isnan(straightness(search))
    region = Region().after(
        search,
        math.nan,
        math.nan,
        steps=0,
        trust=Trust(),
        rho=RHO,
        fade=1.0,
        age=0.0,
        tried=UNKNOWN,
    )
    assert region == Region()


def test_straightness_of_a_parabola_is_a_half_at_its_minimum() -> None:
    def phi(step: float) -> float:
        return (step - 2.0) ** 2 + 1.0

    for step, expected in ((1.0, 0.75), (2.0, 0.5), (4.0, 0.0)):
        search = Search(phi(0.0), -4.0, 2.0, (step,), (phi(step),), step, True, capped=True)
        assert straightness(search) == pytest.approx(expected)


def test_a_run_that_no_batch_agrees_with_stays_where_it_begins() -> None:
    """So a plain VGG starts: each step helps its own batch, and no other."""
    assert after(Region(), 200, share=0.9, agreement=0.003, noise=0.05).radius == SAFE


def test_little_agreement_widens_it_slowly_if_it_is_sure() -> None:
    """As of tables of embeddings, of which each batch touches other rows."""
    region = after(Region(), 25, share=1.0, agreement=0.02, noise=0.005)
    assert 2 * SAFE < region.radius < 4 * SAFE
    assert after(region, 1000, share=1.0, agreement=0.02, noise=0.005).radius > 5 * RHO


@pytest.mark.parametrize("agreement", [0.04, 0.1, 0.4, 0.9])
def test_it_grows_as_fast_as_the_next_batch_confirms_a_step(agreement: float) -> None:
    region = after(judged(0.002, agreement), 1, agreement=agreement)
    confirmed = min(1.0, agreement / 0.4)
    assert region.confirmed == pytest.approx(confirmed)
    assert region.radius == pytest.approx(0.002 * (1 + confirmed))


@pytest.mark.parametrize(
    ("share", "growth"), [(0.8, 0.0), (0.95, 0.0), (0.96, 0.05), (0.98, 0.15), (1.0, 0.25)]
)
def test_beyond_rho_it_grows_the_faster_the_straighter_the_line_is(
    share: float, growth: float
) -> None:
    """A transformer's first steps are agreed with at any length; what bends is too long."""
    region = judged(0.008, 0.2)._replace(straightness=share)
    widened = after(region, 1, share=share, agreement=0.2)  # half of it is confirmed
    assert widened.radius == pytest.approx(0.008 * (1 + growth / 2))


def test_up_to_rho_it_grows_along_any_straight_line() -> None:
    assert after(Region(), 200, share=0.8, agreement=0.3).radius == pytest.approx(RHO)
    assert after(Region(), 200, share=0.6, agreement=0.3).radius == SAFE


def test_certainty_is_counted_in_standard_errors() -> None:
    """Of a moving mean with the weight 1/5, which has the noise of nine values."""
    draw, found = random.Random(0), []
    region = Region()
    for _ in range(4000):
        region = after(region, 1, agreement=draw.gauss(0.0, 0.1))
        found.append(region.certainty)
    assert statistics.pstdev(found[50:]) == pytest.approx(1.0, rel=0.2)
    assert Region().certainty == 0.0


@pytest.mark.parametrize("earned", [0.002, 0.004, 0.01, 0.1])
def test_a_falling_loss_earns_the_ceiling(earned: float) -> None:
    region = after(Region(), 200, share=0.5, earned=earned)
    assert region.radius == pytest.approx(min(RHO, max(SAFE, earned / 2)))


def test_while_trials_climb_nothing_widens_it() -> None:
    """Where every third trial fails, a region that recovers at once is too wide all the time."""
    climbs = judged(0.002)._replace(straightness=-0.3)
    assert after(climbs, 1, share=0.1, noise=0.1, earned=1.0).radius == 0.002
    assert after(climbs, 20, share=0.1, noise=0.1, earned=1.0).radius > 0.002


def test_a_straight_line_stretches_an_earned_ceiling() -> None:
    assert after(Region(), 200, share=0.8, earned=1.0).radius == pytest.approx(1.5 * RHO)
    assert after(Region(), 200, share=0.7, earned=1.0).radius == pytest.approx(1.25 * RHO)
    assert after(Region(), 200, share=0.65, earned=1.0).radius == pytest.approx(RHO)
    assert after(Region(), 200, share=0.8, earned=RHO).radius == pytest.approx(RHO / 2)


@pytest.mark.parametrize("age", [0.0, 0.1, 0.5])
def test_agreement_widens_it_at_first(age: float) -> None:
    region = after(Region(), 200, share=1.0, agreement=0.2, age=age)
    assert region.radius == pytest.approx(2.0 * RHO / math.sqrt(age + 0.1))
    # And where there is none any more, it fades.
    later = after(region, 300, share=1.0, agreement=0.0, noise=0.1, age=age)
    assert later.radius == pytest.approx(region.radius * math.sqrt(201 / 501), rel=0.05)


@pytest.mark.parametrize("apart", [1, 10, 37])
def test_it_fades_by_steps_and_not_by_searches(apart: int) -> None:
    region = after(judged(0.02)._replace(judged_at=99), 8, apart=apart, agreement=0.0, noise=0.1)
    assert region.radius == pytest.approx(0.02 * math.sqrt(100 / (100 + 8 * apart)))


def test_where_batches_oppose_or_the_line_is_bent_it_narrows() -> None:
    assert after(judged(0.02, -0.1), 1, agreement=-0.1).radius == pytest.approx(0.019)
    bent = judged(0.02)._replace(straightness=0.4)
    assert after(bent, 1, share=0.4, noise=0.1).radius == pytest.approx(0.019)
    # But no further than what is earned.
    assert after(bent, 99, share=0.4, noise=0.1, earned=1.0).radius == pytest.approx(RHO)


def test_it_shrinks_by_three_tenths_where_a_trial_failed() -> None:
    region = after(judged(0.002, 0.2), 1, agreement=0.2, share=-0.1, taken=False)
    assert region.radius == pytest.approx(0.0014)


def test_a_minimum_short_of_the_ceiling_is_no_failure() -> None:
    """A search that goes to it, as a user's may, though the trial had descended."""
    region = after(judged(0.002, 0.2), 1, agreement=0.2, share=0.3, taken=False)
    assert region.radius == pytest.approx(0.003)


def test_a_trial_that_failed_and_then_a_level_one_is_a_failure() -> None:
    """Only a search that told nothing at all is lost in the noise."""
    search = Search(
        *(1.0, -2.0, 0.0, (0.1, 0.01), (9.0, 1.0), 0.01),
        accepted=False,
        capped=False,
        rejected=True,
    )
    region = judged(0.002, 0.2)
    narrower = region.after(
        search, 0.2, 0.4, steps=0, trust=Trust(), rho=RHO, fade=1.0, age=0.0, tried=UNKNOWN
    )
    assert narrower.radius == pytest.approx(0.0014)
    assert narrower.straightness < 0.7


def test_a_rate_that_nothing_confirms_stays_near_those_that_are_known() -> None:
    """As a gradient vanishes, the same length asks for a higher and higher rate."""
    region = after(Region(), FAMILIAR, rate=0.01, losses=FAMILIAR, searches=FAMILIAR)
    assert (region.known_rate, region.radius) == (0.01, SAFE)
    unit = SAFE / 0.01
    for _ in range(20):
        unit *= 0.8
        region = after(region, 1, rate=region.radius / unit, losses=PATIENCE)
    assert region.radius / unit == pytest.approx(LEAP * 0.01)
    waited = after(region, 1, rate=region.radius / unit, losses=2 * PATIENCE)
    assert waited.radius / unit == pytest.approx(min(1.2, 2.0) * LEAP * 0.01)  # by and by
    assert waited.known_rate == 0.01


def test_a_rate_is_known_where_the_loss_falls_or_batches_surely_agree() -> None:
    region = after(Region(), FAMILIAR, rate=0.01, losses=FAMILIAR, searches=FAMILIAR)
    falls = after(region, 20, rate=7.0, plateau=2.0, recent=1.9, earned=2 * SAFE)
    assert falls.known_rate == 7.0
    hardly = after(region, 1, rate=0.04, plateau=2.0, recent=1.95)
    assert (hardly.known_rate, hardly.radius) == (0.01, pytest.approx(SAFE * 2 * LEAP / 4.0))
    agreed = after(region, 40, rate=7.0, agreement=0.3, noise=0.1)
    assert agreed.known_rate == 7.0
    by_chance = after(region, 20, rate=7.0, agreement=0.1, noise=0.1)
    assert (by_chance.certainty > 2.0, by_chance.known_rate) == (True, 0.01)
    lower = after(falls, 1, rate=0.5, plateau=2.0, recent=1.0)
    assert lower.known_rate == 7.0


def test_no_single_batch_decides_what_is_known_or_how_narrow_it_is() -> None:
    region = after(Region(), FAMILIAR, rate=0.01, losses=FAMILIAR, searches=FAMILIAR)
    narrow = after(region, 1, rate=1e6)
    assert narrow.radius == pytest.approx(0.7 * region.radius)
    known = after(region, 1, rate=1e6, plateau=2.0, recent=1.0)
    assert known.known_rate == AT_ONCE * 0.01


def test_a_trial_that_fails_widens_nothing() -> None:
    region = Region(1e-6, known_rate=0.01)
    assert after(region, 1, share=-1.0, taken=False).radius == 1e-6
    assert after(region, 1, share=-1.0, taken=False, rate=1.0).radius == pytest.approx(0.7e-6)


def test_the_rate_narrows_nothing_below_what_weights_can_show() -> None:
    region, trust = Region(SAFE, known_rate=0.01), Trust(losses=100, searches=100)
    for step in range(50):
        tried = Tried(5.0, max(region.radius, SAFE / 2), visible=SAFE / 2)
        region = region.after(
            trial(0.9), 0.0, 0.4, steps=step, trust=trust, rho=RHO, fade=1.0, age=0.0, tried=tried
        )
    assert region.radius == SAFE / 2


@pytest.mark.parametrize("rate", [math.nan, 0.0])
def test_a_rate_that_is_not_known_bounds_nothing(rate: float) -> None:
    assert after(Region(), 50, rate=rate, agreement=0.3).radius == pytest.approx(RHO)


@pytest.mark.parametrize("lr", [1e-5, 1.0])
def test_a_vanishing_gradient_makes_no_rate_endless(lr: float) -> None:
    """Batches that agree on nothing, and whose gradients become ten thousand times smaller."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.ones(50, dtype=torch.float64))
    optimizer = LineSearch(torch.optim.SGD([weight], lr=lr, momentum=0.9))
    rates: list[float] = []
    starts: list[Tensor] = []
    for step in range(400):
        noise = torch.randn(50, dtype=torch.float64) * 10 ** (-step / 100)
        fails = step % 7 == 3  # then every trial climbs, but for very short ones

        def loss(noise: Tensor = noise, fails: bool = fails) -> Tensor:
            wall = 1e9 * (weight - starts[-1]).pow(4).sum()
            return 2.0 + 0.01 * noise @ weight + (wall if fails else 0.0)

        starts.append(weight.detach().clone())
        optimizer.step(loss)
        rates.append(optimizer.param_groups[0]["step_size"])
    assert max(rates) < 2.0 * LEAP * max(rates[:FAMILIAR])
    assert rates[-1] > 0.0


@pytest.mark.parametrize("rho", [0.002, RHO, 3 * RHO])
def test_what_the_usual_ceiling_would_earn_is_kept_where_lines_are_bent(rho: float) -> None:
    """And no more: beyond it a bent line, or a batch that disagrees, narrows a higher ceiling."""
    usual = min(rho, RHO)
    assert after(Region(rho), 200, share=0.4, earned=1.0, rho=rho).radius == pytest.approx(usual)
    disagreed = after(Region(rho), 200, share=0.6, agreement=-0.3, earned=1.0, rho=rho)
    assert disagreed.radius == pytest.approx(usual)


def test_beyond_the_usual_only_a_straight_line_is_followed() -> None:
    half_bent = after(Region(), 200, share=0.6, earned=1.0, rho=3 * RHO)
    assert RHO <= half_bent.radius < 1.2 * RHO
    straight = after(Region(), 200, share=0.7, earned=1.0, rho=3 * RHO)
    assert straight.radius == pytest.approx(3 * RHO)


def test_no_number_of_failures_closes_it() -> None:
    assert after(Region(), 1000, share=-1.0, taken=False).radius == SAFE / 2
    assert after(Region(1e-4), 1, share=-1.0, taken=False, rho=1e-6).radius == 0.7e-4
    assert after(Region(1e-4), 99, share=-1.0, taken=False, rho=1e-6).radius == 1e-6


def test_the_first_losses_are_of_large_outputs() -> None:
    region = after(Region(), 10, agreement=0.5, losses=LARGE_OUTPUTS)
    assert region.radius == SAFE
    assert after(region, 1, agreement=0.5, losses=LARGE_OUTPUTS + 1).radius > SAFE


@pytest.mark.parametrize("rho", [0.015, 0.1])
def test_a_larger_ceiling_is_not_multiplied(rho: float) -> None:
    wide = after(Region(), 300, share=1.0, agreement=0.5, earned=1.0, rho=rho)
    assert wide.radius == pytest.approx(max(rho, 2 * RHO / math.sqrt(0.1)))


def test_what_is_not_known_of_the_last_step_changes_no_opinion() -> None:
    region = judged(0.002, 0.3)
    later = after(region, 5, agreement=math.nan)
    assert (later.agreement, later.own_agreement, later.agreements) == (0.3, 0.4, 50)
    assert after(region, 5, own=math.nan).agreement == 0.3


def test_a_search_lost_in_the_noise_leaves_the_word_to_the_next_batch() -> None:
    """As in bf16: what a trial gains is less than the loss is off."""
    lost = Search(
        1.0, -2.0, 0.0, (0.1,), (1.001,), 0.0, accepted=False, capped=False, rejected=True
    )
    region, trust = Region(), Trust(losses=100)
    for steps in range(60):
        region = region.after(
            lost, 0.2, 0.4, steps=steps, trust=trust, rho=RHO, fade=1.0, age=0.0, tried=UNKNOWN
        )
    assert (region.straightness, region.lines) == (0.8, 0)
    assert region.radius == pytest.approx(RHO)
    for steps in range(60, 160):
        region = region.after(
            lost, -0.1, 0.4, steps=steps, trust=trust, rho=RHO, fade=1.0, age=0.0, tried=UNKNOWN
        )
    assert region.radius == SAFE


@pytest.mark.parametrize("rho", [1e-6, 1e-4, 0.005, 0.1])
@pytest.mark.parametrize("steps", [0, 100, 1000, 100_000])
def test_no_radius_is_wider_than_the_ceiling_of_now_allows(rho: float, steps: int) -> None:
    fade, age = min(1.0, math.sqrt(1000 / (steps + 1))), steps / 1000
    widest = Region(radius=9.0).ceiling(rho, fade, age)
    usual = min(rho, RHO)
    assert widest == pytest.approx(
        max(rho * fade, 1.5 * usual * fade, 2 * usual / (age + 0.1) ** 0.5)
    )
    assert Region(radius=1e-9).ceiling(rho, fade, age) == 1e-9


@pytest.mark.parametrize(("rho", "first"), [(1e-6, 6.4e-6), (1e-4, 6.4e-4), (0.005, 0.001)])
def test_a_small_ceiling_holds_from_the_first_step(rho: float, first: float) -> None:
    run = Bowl(sgd, max_relative_step=rho)
    before = run.weight.detach().clone()
    run.optimizer.step(run.loss)
    assert float((run.weight.detach() - before).norm() / before.norm()) <= 1.0001 * first


def test_a_run_from_before_there_was_a_region_goes_on_with_what_it_had_earned() -> None:
    run = Bowl(sgd)
    run.optimizer.step(run.loss)
    state = run.optimizer.state_dict()
    for group in state["param_groups"]:
        for name in Region._fields:
            del group[name]
        group["earned"] = 0.006
    other = Bowl(sgd)
    other.optimizer.load_state_dict(state)
    assert other.optimizer.param_groups[0]["radius"] == 0.003


def test_a_checkpoint_costs_one_measurement_and_no_more() -> None:
    saved, plain = Bowl(sgd), Bowl(sgd)
    for step in range(30):
        for run in (saved, plain):
            run.optimizer.step(run.loss)
        if step == 20:
            copy.deepcopy(saved.optimizer)
    counts = [Region.of(run.optimizer.param_groups[0]).agreements for run in (saved, plain)]
    assert counts == [28, 29]


def test_a_lone_high_loss_does_not_switch_the_search_off() -> None:
    """No rise is tolerated that exceeds what the slope has promised."""
    run = Bowl(sgd)
    for step in range(60):
        height = 1e6 if step == 40 else 0.0
        run.optimizer.step(lambda: run.loss() + height)
    options, group = run.optimizer.options, run.optimizer.param_groups[0]
    assert Trust.of(group).batch_noise > 1e4
    assert options.tolerance(group, promised=0.01) == 0.01


class Bowl:
    """Half the squared distance to a point, whose gradient is known."""

    def __init__(self, base: Any, **options: Any) -> None:
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(50, dtype=torch.float64))
        self.to = torch.zeros(50, dtype=torch.float64)
        self.optimizer = LineSearch(base([self.weight]), **options)

    def loss(self) -> Tensor:
        return 0.5 * (self.weight - self.to).square().sum()

    def step(self) -> float:
        """A step; the agreement of its batch with the step before."""
        before = self.optimizer.param_groups[0]["agreement"]
        count = self.optimizer.param_groups[0]["agreements"]
        self.optimizer.step(self.loss)
        now, weight = self.optimizer.param_groups[0]["agreement"], max(NEWS, 1 / (count + 1))
        return float(before + (now - before) / weight)


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def test_agreement_is_the_cosine_of_the_last_step_with_the_new_descent() -> None:
    run, last = Bowl(sgd), None
    generator = torch.Generator().manual_seed(0)
    for step in range(30):
        run.to = torch.randn(50, dtype=torch.float64, generator=generator)
        before = run.weight.detach().clone()
        found = run.step()
        if step:
            assert last is not None
            expected = torch.cosine_similarity(last, run.to - before, dim=0)
            assert found == pytest.approx(float(expected), abs=1e-9)
        else:
            assert run.optimizer.param_groups[0]["agreement"] == 0.0
        last = run.weight.detach() - before


def test_own_agreement_is_the_cosine_of_a_step_with_its_own_descent() -> None:
    run, generator, own = Bowl(sgd), torch.Generator().manual_seed(0), 0.0
    for _ in range(20):
        run.to = torch.randn(50, dtype=torch.float64, generator=generator)
        before, counted = run.weight.detach().clone(), run.optimizer.param_groups[0]["agreements"]
        run.step()
        moved = run.weight.detach() - before
        cosine = float(torch.cosine_similarity(moved, run.to - before, dim=0))
        group = run.optimizer.param_groups[0]
        if group["agreements"] > counted:  # of the first there is nothing to compare it with
            own += max(NEWS, 1 / (counted + 1)) * (cosine - own)
        assert group["own_agreement"] == pytest.approx(own, abs=1e-9)
    assert group["agreements"] > 5


def test_clipping_does_not_change_agreement() -> None:
    """It is of the directions alone: a gradient that is clipped points where it did."""
    plain, clipped = Bowl(sgd), Bowl(sgd)

    def closure(backward: bool) -> Tensor:
        loss = clipped.loss()
        if backward:
            loss.backward()
            with clipped.optimizer.clipping():
                nn.utils.clip_grad_norm_(clipped.weight, 1e-3)
        return loss

    for _ in range(10):
        plain.optimizer.step(plain.loss)
        clipped.optimizer.step(closure)
    ours, theirs = (Region.of(run.optimizer.param_groups[0]) for run in (plain, clipped))
    assert ours.own_agreement == pytest.approx(theirs.own_agreement)
    assert ours.agreement == pytest.approx(theirs.agreement)


def test_one_that_climbs_sees_the_same() -> None:
    down, up = Bowl(sgd), Bowl(lambda params: torch.optim.SGD(params, 0.1, 0.9, maximize=True))
    losses = down.loss, lambda: -up.loss()
    for _ in range(40):
        for run, loss in zip((down, up), losses, strict=True):
            run.optimizer.step(loss)
    ours, theirs = (Region.of(run.optimizer.param_groups[0]) for run in (down, up))
    assert ours == theirs
    assert ours.radius > RHO


def test_a_smooth_way_down_is_taken_in_long_steps() -> None:
    """Where all batches agree, nothing waits for a calendar."""
    run = Bowl(sgd)
    for _ in range(40):
        run.optimizer.step(run.loss)
    assert run.optimizer.param_groups[0]["radius"] > 4 * RHO


def test_resumed_is_as_continued() -> None:
    run = Run()
    for _ in range(25):
        run.step()
    state = copy.deepcopy(run.snapshot())
    other = Run()
    other.model.load_state_dict(state[0])
    other.optimizer.load_state_dict(state[1])
    for each in (run, other):
        torch.manual_seed(1)
        for _ in range(25):
            each.optimizer.step(lambda: each.model(each.inputs).square().mean())
    assert torch.equal(run.vector(), other.vector())
    assert Region.of(run.group) == Region.of(other.group)


@pytest.mark.parametrize("search_prob", [0.0, 1.0])
def test_who_never_or_always_searches_has_none(search_prob: float) -> None:
    run = Run(search_prob=search_prob)
    for _ in range(5):
        run.step()
    assert run.group.keys().isdisjoint(Region._fields)


@pytest.mark.parametrize(
    ("rise", "tolerance", "taken"),
    [(-0.1, 0.0, True), (0.0, 0.0, False), (0.1, 0.0, False), (0.1, 0.2, True), (0.3, 0.2, False)],
)
def test_a_trial_at_the_ceiling_is_taken_if_it_descends_or_nearly(
    rise: float, tolerance: float, taken: bool
) -> None:
    calls = []

    def phi(step: float) -> float:  # from 1 with slope -1 to 1 + rise at 2
        calls.append(step)
        return 1.0 - step + (rise + 2.0) / 4.0 * step**2

    start = Start(1.0, -1.0, trial=2.0, ceiling=2.0, tolerance=tolerance)
    found = QuadraticSearch(descent_suffices=True)(phi, start)
    assert found.capped == taken
    assert len(calls) == (1 if taken else 2)
    if not taken:
        assert found.step_size == pytest.approx(2.0 / (rise + 2.0))
    shorter = QuadraticSearch()(phi, start)  # the paper's
    assert shorter.step_size == pytest.approx(2.0 / (rise + 2.0))


def test_a_shorter_first_trial_is_no_step_yet() -> None:
    start = Start(1.0, -1.0, trial=0.5, ceiling=2.0)
    found = QuadraticSearch(descent_suffices=True)(lambda x: 1.0 - x + 0.5 * x**2, start)
    assert found.step_size == pytest.approx(1.0)


def test_the_tolerance_is_half_of_what_tells_batches_apart() -> None:
    trust = Trust()
    for number in range(200):
        trust = trust.after_loss(2.0 + 0.1 * (-1) ** number)
    assert trust.batch_noise == pytest.approx(0.1, rel=0.1)
    assert Trust().after_loss(1.0).after_loss(3.0).batch_noise == 0.0  # not known yet
