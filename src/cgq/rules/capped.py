"""How often searches end at the ceiling: where nearly all do, it is the rate. Numbers only."""

from __future__ import annotations

from typing import Any, NamedTuple

SEARCHES = 100  # that the share is a mean of, about
NEARLY_ALL = 0.95
LOW = 0.001  # of its first value: a ceiling that is lower was made for another optimizer
EARLY = 20  # searches that show that such a ceiling binds


class Capped(NamedTuple):
    """The share of searches that the ceiling held back, of about the last hundred.

    They ended there, or at a trial beyond which their parabola still fell.

    >>> capped = Capped()
    >>> for _ in range(SEARCHES):
    ...     capped = capped.after(True)
    >>> capped.capped_share, capped.is_the_rate
    (1.0, True)
    """

    capped_share: float = 0.0
    searched: int = 0

    @classmethod
    def of(cls, group: dict[str, Any]) -> Capped:
        """What a parameter group says."""
        return cls(*(group[name] for name in cls._fields))

    def after(self, capped: bool) -> Capped:
        """After one more search."""
        weight = 1.0 / min(self.searched + 1, SEARCHES)
        share = self.capped_share + weight * (capped - self.capped_share)
        return Capped(share, self.searched + 1)

    @property
    def is_the_rate(self) -> bool:
        """Whether the ceiling decides, and not the search."""
        return self.searched >= SEARCHES and self.capped_share >= NEARLY_ALL

    def is_too_low(self, ceiling: float, first: float) -> bool:
        """Whether a ceiling that binds is a tiny share of what it was at first.

        >>> Capped(1.0, EARLY).is_too_low(1e-4, first=0.3)
        True
        """
        binds = self.searched >= EARLY and self.capped_share >= NEARLY_ALL
        return binds and ceiling < LOW * first
