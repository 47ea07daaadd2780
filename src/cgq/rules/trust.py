"""The trust region: a relative ceiling, earned by a falling loss, that fades. Numbers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

FIRST = 20  # batches whose mean loss is the starting value
RECENT, USUAL = 0.1, 0.01  # means over about the last 10 and the last 100 losses
RECENT_SHARE, USUAL_SHARE = 1 / 8, 1 / 32  # the same of the share, over searches
SETTLED = 100  # searches before the share can be called settled
MOVED = 1 / 3  # the recent share is so much off the usual one
SAFE = 0.001  # the relative step that a run begins with, if its ceiling is not lower
BEGINNING = 30  # steps after which the rest is earned ...
EARNED = 0.05  # ... by a loss that falls: so much for all of it; or ...
PATIENCE = 500  # ... by as many steps for each further 0.001
HUGE = 1e150  # whose square is still a number
STUCK = 1000  # steps after which the loss should have fallen ...
FALLEN = 0.01  # ... by this share of its starting value


class Trust(NamedTuple):
    """How far a run may be trusted with long steps: its loss, and the share of the ceiling it uses.

    A relative step is long on a plateau, however flat it is: there an average of old searches
    comes too late. So every batch is searched at first, while the share moves, and while the loss
    rises; the means cost nothing. Nor does a search see that momentum will repeat a step that
    helps one batch. So the ceiling has to be earned: see `ceiling`.

    >>> trust = Trust()
    >>> for _ in range(SETTLED):
    ...     trust = trust.after_loss(2.0).after_search(0.9)
    >>> trust.decided().alert
    False
    >>> for _ in range(5):
    ...     trust = trust.after_loss(2.5)
    >>> trust.decided().alert
    True
    """

    losses: int = 0
    start_loss: float = 0.0
    recent_loss: float = 0.0
    usual_loss: float = 0.0
    loss_variance: float = 0.0
    searches: int = 0
    recent_share: float = 0.0
    usual_share: float = 0.0
    plateau_loss: float = 0.0
    earned: float = SAFE  # the relative step that the loss has earned
    alert: bool = True  # whether every batch is to be searched

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> Trust:
        """What a parameter group says."""
        return cls(*(group[name] for name in cls._fields))

    def after_loss(self, loss: float) -> Trust:
        """After a step that started from `loss`; one that is no usual number tells nothing."""
        if not abs(loss) < HUGE:
            return self
        n = self.losses
        start = moving_mean(self.start_loss, loss, n, 0.0) if n < FIRST else self.start_loss
        recent = moving_mean(self.recent_loss, loss, n, RECENT)
        deviation = (loss - recent) ** 2
        plateau = self.plateau_loss
        if BEGINNING // 2 <= n < BEGINNING:  # what came before is of large outputs at first
            plateau = moving_mean(plateau, loss, n - BEGINNING // 2, 0.0)
        return self._replace(
            losses=n + 1,
            start_loss=start,
            recent_loss=recent,
            usual_loss=moving_mean(self.usual_loss, loss, n, USUAL),
            loss_variance=moving_mean(self.loss_variance, deviation, n, RECENT / 2),
            plateau_loss=plateau,
        )

    def after_search(self, share: float) -> Trust:
        """After a search; `share` is the average share of the ceiling it led to."""
        n = self.searches
        return self._replace(
            searches=n + 1,
            recent_share=moving_mean(self.recent_share, share, n, RECENT_SHARE),
            usual_share=moving_mean(self.usual_share, share, n, USUAL_SHARE),
        )

    def decided(self) -> Trust:
        """After a step in which a search was due, even if there was nothing to search.

        Only then: between two such steps the host may not know the losses.
        """
        alert = not self.share_is_settled or self.loss_rises
        return self._replace(alert=alert, earned=self._earned())

    def ceiling(self, rho: float) -> float:
        """How much of a relative ceiling holds now: min(ρ, max(0.001, fallen / 20, t / 500,000)).

        `fallen` is by what share the recent loss, at the last search, is below the mean of steps 16
        to 30: a fall by a tenth earns 0.005. With 0.001 no network was seen to die; where the loss
        cannot fall much, as in fine-tuning, t = 2,500 steps earn 0.005 too.

        >>> trust = Trust()
        >>> for _ in range(BEGINNING):
        ...     trust = trust.after_loss(2.0)
        >>> trust.decided().ceiling(0.005)
        0.001
        >>> for _ in range(100):
        ...     trust = trust.after_loss(1.9)
        >>> round(trust.decided().ceiling(0.005), 5), trust.decided().ceiling(0.002)
        (0.0025, 0.002)
        """
        return min(rho, self.earned)

    def _earned(self) -> float:
        waited = SAFE * max(1.0, self.losses / PATIENCE)
        return max(waited, EARNED * self.fallen)

    @property
    def fallen(self) -> float:
        """By what share the recent loss is below that of the beginning; 0 before that is known."""
        if self.losses < BEGINNING or not self.plateau_loss:
            return 0.0
        return (self.plateau_loss - self.recent_loss) / abs(self.plateau_loss)

    @property
    def has_fallen(self) -> bool:
        """Whether it is by enough to earn more than what a run begins with."""
        return EARNED * self.fallen > 2.0 * SAFE

    @property
    def share_is_settled(self) -> bool:
        """Whether the share has stopped moving."""
        off = abs(self.recent_share - self.usual_share)
        return self.searches >= SETTLED and off <= MOVED * self.usual_share

    @property
    def loss_rises(self) -> bool:
        """Whether the recent loss exceeds the usual one by more than noise explains.

        The mean over about the last ten has 0.23 of the noise of one: this asks for 4.3 times it.
        """
        return self.recent_loss - self.usual_loss > math.sqrt(self.loss_variance)

    @property
    def batch_noise(self) -> float:
        """By how much losses of batches differ, in the quadratic mean; 0 before it is known."""
        return math.sqrt(self.loss_variance) if self.losses >= FIRST else 0.0

    @property
    def is_stuck(self) -> bool:
        """Whether, after many steps, the loss is still about where it began."""
        bound = self.start_loss - FALLEN * abs(self.start_loss)
        return self.losses >= STUCK and self.usual_loss > bound


def moving_mean(old: float, new: float, count: int, rate: float) -> float:
    """The mean of `count` values and `new`; a moving one as soon as 1/count is below `rate`.

    >>> moving_mean(1.0, 2.0, count=1, rate=0.1), moving_mean(1.0, 2.0, count=99, rate=0.1)
    (1.5, 1.1)
    """
    return old + max(rate, 1.0 / (count + 1)) * (new - old)
