"""Watches over a run: its losses, and steps that are lost, when the host can read them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cgq.engine.direction import Outcome
from cgq.engine.options import SearchOptions
from cgq.evaluation.precision import rounding
from cgq.rules.scalars import Number, stacked
from cgq.rules.trust import Trust
from cgq.vectors.arriving import Arriving
from cgq.vectors.layout import Layout

Groups = list[dict[str, Any]]

LONG = 100  # steps after which somebody should have shown a loss
MANY = 20  # steps lost in a row: more than a scaler of gradients needs to find its scale
UNREAD = 1000  # losses left on a device; where searches are rarer, the host waits once for as many


class Guard:
    """Tells the run's `Trust`, which is kept in its groups, what becomes of each step."""

    def __init__(self) -> None:
        # Losses of steps that were not searched, and whether each was skipped.
        self._unread: list[tuple[Number, Tensor]] = []
        self._arriving: Arriving | None = None  # all of those
        self.lost_in_a_row = 0

    def has_lost_many(self, outcome: Outcome) -> bool:
        """Whether this skipped step is the one with which many in a row were not finite."""
        trials = () if outcome.search is None else outcome.search.trial_losses
        # A search that measured something may have found nothing to gain.
        lost = not any(map(math.isfinite, trials))
        self.lost_in_a_row = self.lost_in_a_row + 1 if lost else 0
        return self.lost_in_a_row == MANY

    def sees_stuck(self, outcome: Outcome, groups: Groups) -> bool:
        """Take in a step, and say whether the run is stuck; a skipped one tells nothing."""
        if outcome.loss is None:
            return False
        if isinstance(outcome.skipped, Tensor):
            self._unread.append((outcome.loss, outcome.skipped))
            self._arriving = None
            if len(self._unread) >= UNREAD:
                self.read_losses(groups)
            return False
        self.read_losses(groups)
        if outcome.skipped:
            return outcome.due and Trust.of(groups[0]).is_stuck
        trust = Trust.of(groups[0]).after_loss(outcome.loss)
        if outcome.due:
            if outcome.search is not None:
                trust = trust.after_search(outcome.numbers["average"])
            trust = trust.decided()
        _write(trust, groups)
        return outcome.due and trust.is_stuck

    def send_losses(self) -> None:
        """Have what is unread on its way before the host waits for something else."""
        if self._unread and self._arriving is None:
            device = self._unread[0][1].device
            losses = stacked(device, *(loss for loss, _ in self._unread))
            lost = torch.stack([skipped.to(device) for _, skipped in self._unread])
            self._arriving = Arriving(losses.masked_fill(lost, math.nan))  # which tells nothing

    def read_losses(self, groups: Groups) -> None:
        """Take in the losses since the host last looked, where that was not at each of them."""
        self.send_losses()
        if self._arriving is None:
            return
        trust = Trust.of(groups[0])
        for loss in self._arriving.read():
            trust = trust.after_loss(loss)
        _write(trust, groups)
        self._unread, self._arriving = [], None


def _write(trust: Trust, groups: Groups) -> None:
    for group in groups:
        group.update(trust._asdict())


def earned_ceiling(
    options: SearchOptions, group: dict[str, Any], loss: Tensor | float | None, layout: Layout
) -> float | None:
    """Of a relative ceiling, as much as the run has earned."""
    rho = options.max_relative_step
    if rho is None or loss is None or not options.is_guarded:
        return rho
    # Weights of few digits, as in bf16, do not see a step that is shorter than those.
    visible = min(rho, rounding(layout.dtypes))
    return max(Trust.of(group).ceiling(rho), visible)


def has_seen_no_loss(group: dict[str, Any]) -> bool:
    """Whether a run that is guarded by its losses has shown none for long."""
    return group["steps"] >= LONG and not (group["average"] or group["losses"])
