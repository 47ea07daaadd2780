"""Watches the loss of batches that take the average step unsearched. Numbers only."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

LEVEL = 0.1  # the level is a mean over about the last 10 losses
NOISE = 0.05  # and its noise one over about the last 20 deviations from it
FAR = 3.0  # deviations above the level, from which on a loss is no noise
LEAST = 0.01  # of the level: what rounding and a few odd rows explain
AFTER = 3  # batches that are searched after one that stood above the level


class Watch(NamedTuple):
    """The recent level of the loss, and for how many more batches to search.

    >>> watch = Watch()
    >>> for loss in (2.0, 1.9, 2.1, 2.0, 1.9):
    ...     watch = watch.after(loss, searched=False)
    >>> watch.is_alarmed_by(2.1), watch.is_alarmed_by(3.0)
    (False, True)
    """

    watched_losses: int = 0
    loss_level: float = 0.0
    loss_noise: float = 0.0
    to_search: int = 0

    @classmethod
    def of(cls, group: dict[str, Any]) -> Watch:
        """What a parameter group says."""
        return cls(*(group[name] for name in cls._fields))

    def is_alarmed_by(self, loss: float) -> bool:
        """Whether a batch is to be searched: its loss is too high, or one just before it was."""
        return self.to_search > 0 or not loss <= self.limit

    @property
    def limit(self) -> float:
        """The loss from which on noise does not explain it; infinite before noise is known."""
        if self.watched_losses < 2:
            return math.inf
        return self.loss_level + max(FAR * self.loss_noise, LEAST * abs(self.loss_level))

    def after(self, loss: float, *, searched: bool) -> Watch:
        """After a step that started from `loss`; one that is not finite tells nothing."""
        if not math.isfinite(loss):
            return self
        n, high = self.watched_losses, loss > self.limit
        off = loss - self.loss_level if n else 0.0
        if high:  # or it would be the next one's excuse
            off = min(off, FAR * self.loss_noise)
        return Watch(
            n + 1,
            self.loss_level + off * max(LEVEL, 1.0 / n) if n else loss,
            self.loss_noise + (abs(off) - self.loss_noise) * max(NOISE, 1.0 / n) if n else 0.0,
            AFTER if high else max(self.to_search - searched, 0),
        )
