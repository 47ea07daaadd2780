"""With how many ρ a network begins: small ones with more, large ones with less."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from wrapped_run import Run

from cgq.engine.relative_ceiling import RelativeCeiling
from cgq.rules.search import Search
from cgq.rules.trust import Trust, fading, outset
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


@pytest.mark.parametrize(("agreement", "times"), [(-0.05, 2.0), (-0.3, 1.0)])
def test_where_the_next_batch_is_opposed_a_small_network_keeps_to_rho(
    agreement: float, times: float
) -> None:
    """As on an MLP around SGD, whose batches ask for a third of each step back."""
    bent = Search(1.0, -2.0, 0.0, (0.1,), (0.88,), 0.1, accepted=True, capped=True)
    region, trust = Region(), Trust(losses=1000, earned=1.0)
    for step in range(200):
        region = region.after(
            bent, agreement, 0.8, steps=step, trust=trust, rho=RHO, fade=2.0, age=0.0,
            tried=UNKNOWN, most=2.0,
        )  # fmt: skip
    assert region.radius == pytest.approx(times * RHO)
    wide = region._replace(radius=2.0 * RHO, agreement=agreement)
    after = wide.after(
        bent, agreement, 0.8, steps=200, trust=trust, rho=RHO, fade=2.0, age=0.0,
        tried=UNKNOWN, most=2.0,
    )  # fmt: skip
    assert after.radius == pytest.approx((2.0 if times > 1.0 else 1.9) * RHO)  # by degrees
