"""A base optimizer's learning rates: their schedule, and the lift of tiny ones. Numbers only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

Group = dict[str, Any]

LIFT = 512.0  # within as much of 1 a factor needs no lift
STILL = 10  # steps without any update, until it is clear that all of it is lost
LIFT_TRIES = 5  # in a row, until it is clear that the rate is not heeded
HIGHEST = 2.0**40  # lift


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


class Lift(NamedTuple):
    """What to multiply another optimizer's rates by, so that its update shows in θ's digits.

    Where much more than the update is applied, much of it was lost in the rounding of θ. Powers of
    two round nothing. An optimizer whose update does not grow with its rate is left alone.

    >>> lift = Lift().after(factor=5000.0)
    >>> lift.lift, lift.after(factor=1.2).lift
    (4096.0, 4096.0)
    >>> for _ in range(LIFT_TRIES):
    ...     lift = lift.after(factor=5000.0)
    >>> lift.lift
    1.0
    """

    lift: float = 1.0
    lift_tries: int = 0
    still: int = 0  # steps in a row without any update; some optimizers begin with a few

    def after(self, factor: float, most: float = HIGHEST) -> Lift:
        """After a step that applied `factor` of an update made with this lift; 0: none was made.

        No lift is above `most`: for gradients that vanish no rate makes up.
        """
        if not factor:
            if self.still < STILL:
                return self._replace(still=self.still + 1)
            factor = 2.0 * LIFT  # all of it was lost
        wanted = max(self.lift * 2.0 ** round(math.log2(factor)), 1.0)
        if 1.0 / LIFT <= wanted / self.lift <= LIFT:
            return Lift(self.lift, 0)
        if self.lift_tries < LIFT_TRIES:
            possible = max(2.0 ** math.floor(math.log2(min(most, HIGHEST))), 1.0)
            return Lift(min(wanted, possible), self.lift_tries + 1)
        return Lift(1.0, self.lift_tries)
