"""Watches over a run: its losses, and steps that are lost, when the host can read them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cgq.engine.step import Outcome
from cgq.rules.scalars import Number, stacked
from cgq.rules.trust import Trust

Groups = list[dict[str, Any]]

MANY = 20  # steps lost in a row: more than a scaler of gradients needs to find its scale
UNREAD = 1000  # losses left on a device; where searches are rarer, the host waits once for as many


class Guard:
    """Tells the run's `Trust`, which is kept in its groups, what becomes of each step."""

    def __init__(self) -> None:
        # Losses of steps that were not searched, and whether each was skipped.
        self._unread: list[tuple[Number, Tensor]] = []
        self._lost_in_a_row = 0

    def has_lost_many(self, outcome: Outcome) -> bool:
        """Whether this is the step with which many in a row were not finite, where one looked."""
        if isinstance(outcome.skipped, Tensor):
            return False
        trials = () if outcome.search is None else outcome.search.trial_losses
        # A search that measured something may have found nothing to gain.
        lost = outcome.skipped and not any(map(math.isfinite, trials))
        self._lost_in_a_row = self._lost_in_a_row + 1 if lost else 0
        return self._lost_in_a_row == MANY

    def see(self, outcome: Outcome, groups: Groups) -> None:
        """Take in a step; a skipped one tells nothing."""
        if outcome.loss is None:
            return
        if isinstance(outcome.skipped, Tensor):
            self._unread.append((outcome.loss, outcome.skipped))
            if len(self._unread) >= UNREAD:
                self.read_losses(groups)
            return
        self.read_losses(groups)
        if outcome.skipped:
            return
        trust = Trust.of(groups[0]).after_loss(outcome.loss)
        if outcome.due:
            if outcome.search is not None:
                trust = trust.after_search(outcome.numbers["average"])
            trust = trust.decided()
        _write(trust, groups)

    def read_losses(self, groups: Groups) -> None:
        """Take in the losses since the host last looked, where that was not at each of them."""
        if not self._unread:
            return
        device, trust = self._unread[0][1].device, Trust.of(groups[0])
        losses = stacked(device, *(loss for loss, _ in self._unread))
        lost = torch.stack([skipped.to(device) for _, skipped in self._unread])
        for loss in losses.masked_fill(lost, math.nan).tolist():  # which tells nothing
            trust = trust.after_loss(loss)
        _write(trust, groups)
        self._unread = []


def _write(trust: Trust, groups: Groups) -> None:
    for group in groups:
        group.update(trust._asdict())
