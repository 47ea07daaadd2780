"""A run's watch: kept in its parameter groups, told of its losses when the host can read them."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from cgq.scalars import Number, choose, stacked
from cgq.step import Outcome
from cgq.watch import Watch

Groups = list[dict[str, Any]]

UNREAD = 1000  # losses left on a device; where searches are rarer, the host waits once for as many


class Lookout:
    """Sees what becomes of each step. The watch says whether it calls for more searches."""

    def __init__(self) -> None:
        self._unread: list[Number] = []  # losses of steps that were not searched

    def see(self, outcome: Outcome, groups: Groups) -> None:
        """Take in a step; one that was left out tells nothing."""
        if outcome.loss is None:
            return
        self._unread.append(choose(outcome.skipped, math.nan, outcome.loss))
        if not isinstance(outcome.loss, Tensor) or len(self._unread) >= UNREAD:
            self.read_losses(groups)
        if outcome.due and outcome.skipped is not True:
            watch = Watch.of(groups[0])
            if outcome.search is not None:
                watch = watch.after_search(outcome.progress.average)
            _write(watch.decided(), groups)

    def read_losses(self, groups: Groups) -> None:
        """Take in the losses since the host last looked, where that was not at each of them."""
        if not self._unread:
            return
        watch, losses = Watch.of(groups[0]), self._unread
        for loss in losses:
            if isinstance(loss, Tensor):
                losses = stacked(loss.device, *losses).tolist()
                break
        for loss in losses:
            watch = watch.after_loss(loss)
        _write(watch, groups)
        self._unread = []


def _write(watch: Watch, groups: Groups) -> None:
    for group in groups:
        group.update(watch._asdict())
