"""Losses of unsearched steps on an accelerator: the host hears of them two steps later."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from typing import Any

from torch import Tensor

from cgq.engine.direction import Outcome
from cgq.rules.scalars import Number, as_tensor
from cgq.rules.watch import Watch
from cgq.vectors.arriving import Arriving

Groups = list[dict[str, Any]]

# In the groups: the losses of two steps ago and of the last one, the oldest first. Not whatever has
# arrived: two runs would then hear of a loss at different steps.
ON_THE_WAY = "late_loss_2", "late_loss_1"
NONE = math.inf  # tells a watch nothing; not NaN, which is no equal of itself in a checkpoint


class LateLosses:
    """Tells the run's `Watch` what its steps started from, without the host waiting for the last.

    >>> import torch
    >>> lost, groups = torch.tensor(False), [Watch()._asdict() | LateLosses.numbers()]
    >>> late = LateLosses()
    >>> for loss in (2.0, 1.9, 1.8):
    ...     late.tell(Outcome({}, torch.tensor(loss), lost), groups)
    >>> groups[0]["watched_losses"], groups[0]["loss_level"]  # of the first one alone
    (1, 2.0)
    """

    def __init__(self) -> None:
        self._sent: deque[tuple[Tensor, Arriving]] = deque(maxlen=len(ON_THE_WAY))

    @staticmethod
    def numbers() -> dict[str, float]:
        """What the groups keep, as it is at first."""
        return dict.fromkeys(ON_THE_WAY, NONE)

    def watch(self, groups: Groups, names: tuple[str, ...] = ON_THE_WAY[:1]) -> Watch:
        """The watch as the losses on their way leave it: the one of two steps ago, or all."""
        watch = Watch.of(groups[0])
        for name in names:
            watch = watch.after(self._read(groups, name), searched=False)
        return watch

    def tell(self, outcome: Outcome, groups: Groups) -> None:
        """Take in a step; a skipped one tells nothing."""
        if outcome.loss is None or outcome.skipped is True:
            return
        if isinstance(outcome.skipped, Tensor):
            watch = self.watch(groups)
            loss = as_tensor(outcome.loss, outcome.skipped.device)  # a closure may return a float
            late = loss.masked_fill(outcome.skipped, NONE)
            self._sent.append((late, Arriving(late)))
            values = [*(groups[0][newer] for _, newer in pairwise(ON_THE_WAY)), late]
            told = dict(zip(ON_THE_WAY, values, strict=True))
        else:  # the host has looked, so all that was on its way has arrived
            watch = self.watch(groups, ON_THE_WAY).after(outcome.loss, searched=outcome.due)
            told = self.numbers()
        for group in groups:
            group.update(watch._asdict() | told)

    def _read(self, groups: Groups, name: str) -> float:
        """A loss on its way, for which the host waits if it must."""
        held: Number = groups[0][name]
        if not isinstance(held, Tensor):
            return float(held)
        sent = [arriving.read() for loss, arriving in self._sent if loss is held]
        (number,) = sent[0] if sent else [held.item()]
        for group in groups:
            group[name] = number
        return number
