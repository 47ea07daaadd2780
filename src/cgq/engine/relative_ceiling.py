"""The relative ceiling of `LineSearch`: its trust region, as the parameter groups keep it."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from cgq.engine.direction import Outcome
from cgq.evaluation.precision import rounding
from cgq.rules.reach import at_first, fading
from cgq.rules.trust import Trust
from cgq.rules.trust_region import Region, Tried
from cgq.vectors.layout import Layout

Groups = list[dict[str, Any]]


class RelativeCeiling(NamedTuple):
    """How long a step may be, relative to the weights."""

    rho: float
    full_steps: float
    is_judged: bool
    """Whether searches and batches judge it; else it is ρ, fading, whatever the network's size."""

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
        if loss is None or not self.is_judged:
            return self.rho * fading(group["steps"], self.full_steps)
        fade, age, most = self._time(group, layout)
        radius = Region.of(group).ceiling(self.rho, fade, age, most)
        return max(radius, self._visible(group, layout))

    def _visible(self, group: dict[str, Any], layout: Layout) -> float:
        """What weights of few digits, as in bf16, see of a step: nothing that is shorter."""
        return min(self.rho * fading(group["steps"], self.full_steps), rounding(layout.dtypes))

    def judge(self, outcome: Outcome, groups: Groups, layout: Layout) -> None:
        """Let the search and the next batch say how long a step may be."""
        if outcome.search is None or outcome.skipped or not self.is_judged:
            return
        first = groups[0]
        fade, age, most = self._time(first, layout)
        region = Region.of(first).after(
            outcome.search.seen_with(-1.0 if first.get("maximize") else 1.0),
            outcome.agreement,
            outcome.own_agreement,
            steps=first["steps"],
            trust=Trust.of(first),
            rho=self.rho,
            fade=fade,
            age=age,
            tried=Tried(
                _rate(outcome.ceiling, groups),
                self.now(first, outcome.loss, layout),
                self._visible(first, layout),
            ),
            most=most,
        )
        for group in groups:
            group.update(region._asdict())

    def _time(self, group: dict[str, Any], layout: Layout) -> tuple[float, float, float]:
        """What ρ has faded to, how many times `full_steps` were taken, and what it began with."""
        steps, most = group["steps"], at_first(self.rho, layout.weights)
        return fading(steps, self.full_steps, most), steps / self.full_steps, most


def _rate(step: float, groups: Groups) -> float:
    """The base's rate, before any schedule, for a step of so many of its updates."""
    full = max(float(group["full_lr"]) for group in groups)
    return step * float(groups[0]["lift"]) * full
