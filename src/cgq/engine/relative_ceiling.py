"""The relative ceiling of `LineSearch`: its trust region, as the parameter groups keep it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from cgq.engine.direction import Outcome
from cgq.evaluation.precision import rounding
from cgq.rules.search import Search
from cgq.rules.trust import Trust, fading
from cgq.rules.trust_region import Region
from cgq.vectors.layout import Layout

Groups = list[dict[str, Any]]


class RelativeCeiling(NamedTuple):
    """How long a step may be, relative to the weights."""

    rho: float
    full_steps: float
    is_judged: bool
    """Whether searches and batches judge it; else it is ρ, fading."""

    @property
    def numbers(self) -> dict[str, float | int]:
        """What the groups keep of it, as it is at first."""
        return Region()._asdict() if self.is_judged else {}

    def complete(self, groups: Groups) -> None:
        """Give a run from before there was a region what it has earned."""
        for group in groups if self.is_judged else ():
            if "radius" not in group and "earned" in group:
                group.update(Region.earned_before(group, self.rho)._asdict())

    def now(self, group: dict[str, Any], loss: Tensor | float | None, layout: Layout) -> float:
        """That of the step to come."""
        fade, age = self._time(group)
        if loss is None or not self.is_judged:
            return self.rho * fade
        # Weights of few digits, as in bf16, do not see a step that is shorter than those.
        visible = min(self.rho * fade, rounding(layout.dtypes))
        return max(Region.of(group).ceiling(self.rho, fade, age), visible)

    def judge(self, outcome: Outcome, groups: Groups) -> None:
        """Let the search and the next batch say how long a step may be."""
        if outcome.search is None or outcome.skipped or not self.is_judged:
            return
        first = groups[0]
        fade, age = self._time(first)
        region = Region.of(first).after(
            outcome.search.seen_with(-1.0 if first.get("maximize") else 1.0),
            outcome.agreement,
            outcome.own_agreement,
            steps=first["steps"],
            trust=Trust.of(first),
            rho=self.rho,
            fade=fade,
            age=age,
            rate=_rate(outcome.search, groups),
        )
        for group in groups:
            group.update(region._asdict())

    def _time(self, group: dict[str, Any]) -> tuple[float, float]:
        """By how much ρ has faded, and how many times `full_steps` the run has taken."""
        steps = group["steps"]
        return fading(steps, self.full_steps), steps / self.full_steps


def _rate(search: Search, groups: Groups) -> float:
    """The base's rate, before any schedule, for a step as long as the first trial: the ceiling."""
    if not search.trial_steps:
        return math.nan
    full = max(float(group["full_lr"]) for group in groups)
    return search.trial_steps[0] * float(groups[0]["lift"]) * full
