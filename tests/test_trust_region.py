"""The trust region of LineSearch: what widens it, what narrows it, and what it is measured by."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from wrapped_run import Run

from cgq import LineSearch, QuadraticSearch, Search, Start
from cgq.rules.trust import SAFE, Trust
from cgq.rules.trust_region import LARGE_OUTPUTS, Region, straightness

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
    earned: float = SAFE,
    losses: int = 1000,
    taken: bool = True,
    rho: float = RHO,
    fade: float = 1.0,
    age: float = 0.0,
) -> Region:
    trust = Trust(losses=losses, earned=earned)
    for _ in range(count):
        region = region.after(
            trial(share, taken), agreement, trust=trust, rho=rho, fade=fade, age=age
        )
    return region


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
    region = Region().after(search, math.nan, trust=Trust(), rho=RHO, fade=1.0, age=0.0)
    assert region == Region()


def test_straightness_of_a_parabola_is_a_half_at_its_minimum() -> None:
    def phi(step: float) -> float:
        return (step - 2.0) ** 2 + 1.0

    for step, expected in ((1.0, 0.75), (2.0, 0.5), (4.0, 0.0)):
        search = Search(phi(0.0), -4.0, 2.0, (step,), (phi(step),), step, True, capped=True)
        assert straightness(search) == pytest.approx(expected)


def test_a_run_that_no_batch_agrees_with_stays_where_it_begins() -> None:
    """So a plain VGG starts: each step helps its own batch, and no other."""
    assert after(Region(), 200, share=0.9, agreement=0.01).radius == SAFE


@pytest.mark.parametrize("earned", [0.002, 0.004, 0.01, 0.1])
def test_a_falling_loss_earns_the_ceiling(earned: float) -> None:
    region = after(Region(), 200, share=0.5, earned=earned)
    assert region.radius == pytest.approx(min(RHO, max(SAFE, earned / 2)))


def test_a_straight_line_stretches_an_earned_ceiling() -> None:
    assert after(Region(), 200, share=0.8, earned=1.0).radius == pytest.approx(1.5 * RHO)
    assert after(Region(), 200, share=0.8, earned=RHO).radius == pytest.approx(RHO / 2)


@pytest.mark.parametrize(("agreement", "share", "factor"), [(0.06, 0.8, 1.0), (0.2, 0.97, 2.0)])
@pytest.mark.parametrize("age", [0.0, 0.1, 0.5])
def test_agreement_widens_it_at_first(
    agreement: float, share: float, factor: float, age: float
) -> None:
    region = after(Region(), 100, share=share, agreement=agreement, age=age)
    assert region.radius == pytest.approx(factor * RHO / math.sqrt(age + 0.1))
    # And without it the region goes back to what was earned.
    back = after(region, 200, share=share, agreement=0.0, age=age)
    assert back.radius == pytest.approx(SAFE)


def test_it_grows_by_a_fifth_and_shrinks_by_a_tenth_a_search() -> None:
    region = after(Region(0.002, 0.2, 0.9, 50, 50), 1, agreement=0.2)
    assert region.radius == pytest.approx(0.0024)
    region = after(Region(0.002, 0.0, 0.9, 50, 50), 1)
    assert region.radius == pytest.approx(0.0018)
    region = after(Region(0.002, 0.2, 0.9, 50, 50), 1, agreement=0.2, share=-0.1, taken=False)
    assert region.radius == pytest.approx(0.0014)


def test_a_minimum_short_of_the_ceiling_is_no_failure() -> None:
    """A search that goes to it, as a user's may, though the trial had descended."""
    region = after(Region(0.002, 0.2, 0.9, 50, 50), 1, agreement=0.2, share=0.3, taken=False)
    assert region.radius == pytest.approx(0.0024)


def test_a_trial_that_failed_and_then_a_level_one_is_a_failure() -> None:
    """Only a search that told nothing at all is lost in the noise."""
    search = Search(
        *(1.0, -2.0, 0.0, (0.1, 0.01), (9.0, 1.0), 0.01),
        accepted=False,
        capped=False,
        rejected=True,
    )
    region = Region(0.002, 0.2, 0.9, 50, 50)
    narrower = region.after(search, 0.2, trust=Trust(), rho=RHO, fade=1.0, age=0.0)
    assert narrower.radius == pytest.approx(0.0014)
    assert narrower.straightness < 0.7


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
    region = Region(0.002, 0.3, 0.9, 20, 20)
    assert after(region, 5, agreement=math.nan).agreement == 0.3


def test_a_search_lost_in_the_noise_leaves_the_word_to_the_next_batch() -> None:
    """As in bf16: what a trial gains is less than the loss is off."""
    lost = Search(
        1.0, -2.0, 0.0, (0.1,), (1.001,), 0.0, accepted=False, capped=False, rejected=True
    )
    region, trust = Region(), Trust(losses=100)
    for _ in range(60):
        region = region.after(lost, 0.1, trust=trust, rho=RHO, fade=1.0, age=0.0)
    assert (region.straightness, region.lines) == (0.8, 0)
    assert region.radius == pytest.approx(RHO / math.sqrt(0.1))
    for _ in range(60):
        region = region.after(lost, 0.0, trust=trust, rho=RHO, fade=1.0, age=0.0)
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
        now, weight = self.optimizer.param_groups[0]["agreement"], max(0.1, 1 / (count + 1))
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
