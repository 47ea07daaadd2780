"""With how many ρ a network begins: small ones with more, large ones with less."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from wrapped_run import Run

from cgq.engine.direction import Outcome
from cgq.engine.relative_ceiling import RelativeCeiling
from cgq.rules.reach import at_first, fading, outset
from cgq.rules.search import Search
from cgq.rules.trust import SAFE, Trust
from cgq.rules.trust_region import UNKNOWN, Region
from cgq.vectors.layout import Layout

RHO, FULL = 0.005, 1000


def weights(count: int) -> Layout:
    """The places of so many weights, without their memory."""
    return Layout([torch.nn.Parameter(torch.empty(count, device="meta"))], [0])


def group(steps: int) -> dict[str, Any]:
    """Of a run that has grown as wide as it may."""
    return {**Region(radius=9.0)._asdict(), "steps": steps}


@pytest.mark.parametrize(
    ("count", "begins"),
    [(0, 2.0), (1, 2.0), (10**6, 2.0), (2_000_000, math.sqrt(2)), (16 * 10**6, 0.5), (10**12, 0.5)],
)
def test_a_network_begins_with_the_root_of_what_it_is_smaller(count: int, begins: float) -> None:
    assert outset(count) == pytest.approx(begins)


@pytest.mark.parametrize("most", [0.5, 1.0, 2.0])
def test_all_fade_to_the_same(most: float) -> None:
    faded = [fading(step, FULL, most) for step in range(10_000)]
    assert faded[0] == most
    assert sorted(faded, reverse=True) == faded
    assert faded[4 * FULL :] == [fading(step, FULL) for step in range(4 * FULL, 10_000)]


@pytest.mark.parametrize(("count", "most"), [(1000, 2.0), (4_000_000, 1.0), (64_000_000, 0.5)])
@pytest.mark.parametrize("steps", [0, 500, 3999, 20_000])
def test_the_ceiling_counts_all_weights(count: int, most: float, steps: int) -> None:
    """What is earned may be stretched by half, and agreement may go to six times ρ at first."""
    ceiling = RelativeCeiling(RHO, FULL, is_judged=True).now(group(steps), 1.0, weights(count))
    earned = 1.5 * RHO * min(most, math.sqrt(FULL / (steps + 1)))
    agreed = 2.0 * RHO * min(1.0, most) / math.sqrt(steps / FULL + 0.1)
    assert ceiling == pytest.approx(max(earned, agreed))


@pytest.mark.parametrize(
    ("rho", "count", "begins"),
    [(0.001, 1000, 0.002), (0.008, 1000, 0.01), (0.03, 1000, 0.03), (0.03, 64_000_000, 0.015)],
)
def test_a_large_rho_is_not_multiplied(rho: float, count: int, begins: float) -> None:
    """Three times the usual one is long enough for a small network too."""
    assert rho * at_first(rho, count) == pytest.approx(begins)
    wide = {**Region(radius=9.0)._asdict(), "steps": 0}
    widest = RelativeCeiling(rho, math.inf, is_judged=True).now(wide, 1.0, weights(count))
    usual, less = min(rho, RHO), min(1.0, outset(count))
    assert widest == pytest.approx(
        max(begins, 1.5 * usual * begins / rho, 2.0 * usual * less / math.sqrt(0.1))
    )


@pytest.mark.parametrize("count", [1000, 64_000_000])
def test_a_ceiling_that_nothing_judges_is_what_was_asked_for(count: int) -> None:
    ceiling = RelativeCeiling(RHO, FULL, is_judged=False)
    assert ceiling.now(group(0), 1.0, weights(count)) == RHO
    judged = RelativeCeiling(RHO, FULL, is_judged=True)
    assert judged.now(group(0), None, weights(count)) == RHO  # no closure, no loss


@pytest.mark.parametrize("most", [0.5, 1.0, 2.0])
def test_a_falling_loss_earns_so_much(most: float) -> None:
    bent = Search(1.0, -2.0, 0.0, (0.1,), (0.88,), 0.1, accepted=True, capped=True)
    region, trust = Region(), Trust(losses=1000, earned=1.0)
    for step in range(200):
        region = region.after(
            bent, 0.0, 0.4, steps=step, trust=trust, rho=RHO, fade=most, age=0.0,
            tried=UNKNOWN, most=most,
        )  # fmt: skip
    assert region.radius == pytest.approx(most * RHO)


def test_agreement_alone_makes_a_large_network_go_less_far() -> None:
    straight = Search(1.0, -2.0, 0.0, (0.1,), (0.8,), 0.1, accepted=True, capped=True)

    def grown(most: float, searches: int) -> float:
        region, trust = Region(), Trust(losses=1000)
        for step in range(searches):
            region = region.after(
                straight, 0.4, 0.4, steps=step, trust=trust, rho=RHO, fade=most, age=0.0,
                tried=UNKNOWN, most=most,
            )  # fmt: skip
        return region.radius

    assert grown(0.5, 100) == pytest.approx(grown(1.0, 100) / 2)
    assert grown(2.0, 100) == pytest.approx(grown(1.0, 100))  # which is far already


def test_a_small_network_is_counted_by_the_optimizer() -> None:
    run = Run()
    run.step()
    layout = run.optimizer._workspace.layout
    assert layout.weights == sum(param.numel() for param in run.model.parameters())


BENT, STRAIGHT = 0.6, 1.0  # of what the slope promises


def judged(
    region: Region,
    searches: int,
    *,
    share: float = BENT,
    agreement: float = 0.0,
    earned: float = 1.0,
    fade: float = 2.0,
    most: float = 2.0,
    age: float = 0.0,
) -> Region:
    """After as many searches that bring this share."""
    search = Search(1.0, -2.0, 0.0, (0.1,), (1.0 - 0.2 * share,), 0.1, accepted=True, capped=True)
    trust = Trust(losses=1000, earned=earned)
    for _ in range(searches):
        region = region.after(
            search, agreement, 0.8, steps=region.judged_at + 1, trust=trust, rho=RHO, fade=fade,
            age=age, tried=UNKNOWN, most=most,
        )  # fmt: skip
    return region


@pytest.mark.parametrize(
    ("agreement", "times"), [(-0.1, 2.0), (-0.19, 2.0), (-0.21, 1.0), (-0.3, 1.0)]
)
def test_where_the_next_batch_is_opposed_a_small_network_keeps_to_rho(
    agreement: float, times: float
) -> None:
    """As on an MLP around SGD."""
    region = judged(Region(), 200, agreement=agreement)
    assert region.radius == pytest.approx(times * RHO)
    after = judged(region._replace(radius=2.0 * RHO), 1, agreement=agreement)
    assert after.radius == pytest.approx((2.0 if times > 1.0 else 1.9) * RHO)  # by degrees


def test_one_batch_is_not_enough_to_oppose() -> None:
    region = judged(Region(), 200)
    assert judged(region, 1, agreement=-0.8).radius == pytest.approx(2.0 * RHO)
    assert judged(region, 2, agreement=-0.8).radius < 1.99 * RHO


@pytest.mark.parametrize("fade", [0.5, 1.0])
def test_opposition_undoes_no_fading(fade: float) -> None:
    region = judged(Region(), 200, agreement=-0.3, fade=fade)
    assert region.radius == pytest.approx(fade * RHO)


@pytest.mark.parametrize("share", [BENT, 0.7, STRAIGHT])
@pytest.mark.parametrize("earned", [0.005, 0.01, 0.0125, 0.02, 1.0])
def test_who_is_opposed_goes_no_further(share: float, earned: float) -> None:
    opposed = judged(Region(), 200, share=share, earned=earned, agreement=-0.3).radius
    assert opposed <= judged(Region(), 200, share=share, earned=earned).radius


@pytest.mark.parametrize("most", [0.5, 1.0, 2.0])
def test_agreement_quickly_makes_it_rho_or_less_of_a_large_network(most: float) -> None:
    """Along a line that bends a little, agreement widens it to that and no further."""
    region = judged(Region(), 30, share=0.8, agreement=0.8, earned=SAFE, fade=most, most=most)
    assert region.radius == pytest.approx(min(1.0, most) * RHO)


@pytest.mark.parametrize("most", [0.5, 1.0, 2.0])
def test_no_agreement_makes_it_wider_than_the_network_may_go(most: float) -> None:
    wide = Region(radius=9.0, straightness=STRAIGHT, lines=50)
    widest = 2.0 * min(1.0, most) * RHO / math.sqrt(1.0 + 0.1)
    earned = 1.5 * RHO * most
    after = judged(wide, 1, share=STRAIGHT, agreement=0.8, fade=most, most=most, age=1.0)
    assert after.radius == pytest.approx(max(widest, earned))


@pytest.mark.parametrize(("count", "most"), [(1000, 2.0), (4_000_000, 1.0), (2**24, 0.5)])
@pytest.mark.parametrize("agreement", [0.0, 0.8])
def test_what_is_judged_is_what_is_used(count: int, most: float, agreement: float) -> None:
    """Both ask how large the network is: by the loss it earns so much, and no more if all agree."""
    bent = Search(1.0, -2.0, 0.0, (0.1,), (0.84,), 0.1, accepted=True, capped=True)
    ceiling, layout = RelativeCeiling(RHO, math.inf, is_judged=True), weights(count)
    earned = 0.0 if agreement else 1.0
    trust = Trust(losses=10, earned=earned)._asdict()
    group = {**Region()._asdict(), **trust, "full_lr": 1.0, "lift": 1.0}
    for step in range(300):
        group["steps"] = step
        outcome = Outcome({}, 1.0, search=bent, agreement=agreement, own_agreement=0.8)
        ceiling.judge(outcome, [group], layout)
    limit = 1.5 * most if earned else min(1.0, most)  # half as much again along such a line
    assert group["radius"] == pytest.approx(limit * RHO)
    assert ceiling.now(group, 1.0, layout) == group["radius"]


@pytest.mark.parametrize(("count", "first"), [(1000, RHO), (2**24, RHO)])
def test_bf16_weights_begin_with_what_they_can_see(count: int, first: float) -> None:
    """Whatever their number: a shorter step would be lost in their digits."""
    layout = Layout([nn.Parameter(torch.empty(count, device="meta", dtype=torch.bfloat16))], [0])
    ceiling = RelativeCeiling(RHO, FULL, is_judged=True)
    assert ceiling.now({**Region()._asdict(), "steps": 0}, 1.0, layout) == pytest.approx(first)
