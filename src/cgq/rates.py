"""The learning rates of another optimizer's groups: what they are, were, and are for one step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Group = dict[str, Any]


def full_rate(group: Group) -> float:
    """The rate before any schedule; a scheduler that is there already has noted it."""
    rate = group.get("initial_lr", group.get("lr"))
    return 0.0 if rate is None else float(rate)


def note_full_rates(groups: list[Group]) -> None:
    """Let no rate exceed what counts as full: a schedule may begin low and rise to its peak.

    >>> groups = [{"lr": 0.3, "full_lr": 0.1}]
    >>> note_full_rates(groups)
    >>> schedule(groups)
    1.0
    """
    for rate, group in _pairs(groups):
        group["full_lr"] = max(group.get("full_lr", full_rate(group)), rate)


def schedule(groups: list[Group]) -> float:
    """How much of its full rate the group has that has most of it.

    >>> schedule([{"lr": 0.05, "full_lr": 0.1}, {"lr": 0.001, "full_lr": 0.01}])
    0.5
    """
    factors = [rate / group["full_lr"] for rate, group in _pairs(groups) if group["full_lr"]]
    return max(factors, default=1.0)


def fading(taken: int, full_steps: float) -> float:
    """min(1, √(full_steps/t)) for the step number t that follows those taken.

    >>> fading(999, 1000), fading(3999, 1000)
    (1.0, 0.5)
    """
    return min(1.0, math.sqrt(full_steps / (taken + 1)))


def rates(groups: list[Group]) -> list[float]:
    """Each group's rate; 1.0 of one that has none."""
    return [1.0 if group.get("lr") is None else float(group["lr"]) for group in groups]


@contextmanager
def at_lifted_rates(groups: list[Group], lift: float) -> Iterator[None]:
    """All rates `lift` times as large."""
    given = [(group, group["lr"]) for group in groups if group.get("lr") is not None]
    if lift == 1.0:
        given = []
    for group, rate in given:
        group["lr"] = rate * lift
    try:
        yield
    finally:
        for group, rate in given:
            group["lr"] = rate


def _pairs(groups: list[Group]) -> Iterator[tuple[float, Group]]:
    return zip(rates(groups), groups, strict=True)
