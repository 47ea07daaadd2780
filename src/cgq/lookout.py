"""A run's watch: kept in its parameter groups, told of its losses when the host can read them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cgq.scalars import Number, stacked
from cgq.step import Outcome
from cgq.watch import Watch

Groups = list[dict[str, Any]]

MANY = 20  # steps lost in a row: more than a scaler of gradients needs to find its scale
UNREAD = 1000  # losses left on a device; where searches are rarer, the host waits once for as many


class Lookout:
    """Sees what becomes of each step. The watch says whether it calls for more searches."""

    def __init__(self) -> None:
        # Losses of steps that were not searched, and whether each was left out.
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
        """Take in a step; one that was left out tells nothing."""
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
        watch = Watch.of(groups[0]).after_loss(outcome.loss)
        if outcome.due:
            if outcome.search is not None:
                watch = watch.after_search(outcome.progress.average)
            watch = watch.decided()
        _write(watch, groups)

    def read_losses(self, groups: Groups) -> None:
        """Take in the losses since the host last looked, where that was not at each of them."""
        if not self._unread:
            return
        device, watch = self._unread[0][1].device, Watch.of(groups[0])
        losses = stacked(device, *(loss for loss, _ in self._unread))
        lost = torch.stack([skipped.to(device) for _, skipped in self._unread])
        for loss in losses.masked_fill(lost, math.nan).tolist():  # which tells nothing
            watch = watch.after_loss(loss)
        _write(watch, groups)
        self._unread = []


def _write(watch: Watch, groups: Groups) -> None:
    for group in groups:
        group.update(watch._asdict())
