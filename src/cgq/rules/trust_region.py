"""The trust region of `LineSearch`: how long a step may be, by what the run shows. Numbers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from cgq.rules.search import Search
from cgq.rules.trust import SAFE, Trust

NEWS = 0.1  # both judges are means over about the last ten searches
UNMEASURED = 0.8  # a line that was not measured yet is straight enough for one permit, not for both
LARGE_OUTPUTS = 5  # losses, at first: any step that only shrinks the outputs is agreed with
USUAL = 0.005  # the ceiling that the factors below were found with; a larger one is not multiplied
STRAIGHT = 0.7  # of what the slope promises, at least so much comes: then ...
STRETCH = 1.5  # ... the ceiling may be so much higher
# While the next batch agrees with a step, and the line is straight, the region may be so many
# times (t/T + 0.1)^(-1/2) ceilings wide. Of two that hold the wider counts.
PERMITS = ((0.05, 0.7, 1.0), (0.15, 0.95, 2.0))
WIDER, NARROWER, SHORTER = 1.2, 0.9, 0.7  # a search: towards the limit from below, above; rejected


class Region(NamedTuple):
    """A relative ceiling that two judges may widen.

    *Agreement* is the cosine between the last step and the descent that the next batch asks for,
    -g·s/(|g||s|): above zero a longer step would have been better for a batch that did not choose
    it. *Straightness* is what a trial brought of what the slope promised, (φ(0) - φ(γ))/(γ|φ'(0)|):
    1 on a straight line, ½ at a parabola's minimum, 0 where nothing is gained. Where both are high
    a step is too short; where the first is low, as on the plateau a plain VGG starts from, a step
    is led by its own batch alone, and its length has to be earned by a falling loss.

    >>> region, trust = Region(), Trust(losses=50, earned=0.005)
    >>> straight = Search(1.0, -1.0, 0.0, (0.1,), (0.9,), 0.1, accepted=True, capped=True)
    >>> for _ in range(20):
    ...     region = region.after(
    ...         straight, agreement=0.1, trust=trust, rho=0.005, fade=1.0, age=0.05)
    >>> round(region.radius, 4)
    0.0129
    """

    radius: float = SAFE
    """The longest step, relative to the weights, unless ρ allows less by now."""
    agreement: float = 0.0
    straightness: float = UNMEASURED
    agreements: int = 0
    """How many were measured, as of lines."""
    lines: int = 0

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> Region:
        """What a parameter group says."""
        return cls(*(group[name] for name in cls._fields))

    @classmethod
    def earned_before(cls, group: Mapping[str, Any], rho: float) -> Region:
        """That of a run whose state is from before there was one."""
        return cls(radius=max(SAFE, min(rho, group.get("earned", SAFE) / 2.0)))

    def ceiling(self, rho: float, fade: float, age: float) -> float:
        """The radius, within the widest that ρ allows now.

        >>> Region(radius=0.02).ceiling(0.001, fade=1.0, age=0.9)
        0.002
        """
        usual = min(rho, USUAL)
        stretched = max(rho * fade, STRETCH * usual * fade)
        return min(self.radius, max(stretched, PERMITS[-1][-1] * usual / math.sqrt(age + 0.1)))

    def after(
        self,
        search: Search,
        agreement: float,
        *,
        trust: Trust,
        rho: float,
        fade: float,
        age: float,
    ) -> Region:
        """After a search; `agreement` is NaN where nothing is known of the step before.

        ρ·fade is the ceiling now, and `age` how many times `full_steps` the run has taken.
        """
        judged, straight = self, straightness(search)
        if math.isfinite(agreement):
            mean = _mean(self.agreement, agreement, self.agreements)
            judged = judged._replace(agreement=mean, agreements=self.agreements + 1)
        if math.isfinite(straight):
            mean = _mean(self.straightness, straight, self.lines)
            judged = judged._replace(straightness=mean, lines=self.lines + 1)
        if straight < 0.0 and search.step_size < search.trial_steps[0]:
            least = min(SAFE / 2.0, rho * fade)
            return judged._replace(radius=max(SHORTER * self.radius, least))
        limit = judged.limit(trust, rho, fade, age)
        if limit < self.radius:
            return judged._replace(radius=max(limit, NARROWER * self.radius))
        return judged._replace(radius=min(limit, WIDER * self.radius))

    def limit(self, trust: Trust, rho: float, fade: float, age: float) -> float:
        """How wide the region may become, by what is known now."""
        full, usual = rho * fade, min(rho, USUAL)
        limit = min(full, max(SAFE, trust.earned / 2.0))
        if limit == full and self.straightness > STRAIGHT:
            limit = max(full, STRETCH * usual * fade)
        if trust.losses > LARGE_OUTPUTS:
            for agreement, straight, factor in PERMITS:
                if self.agreement > agreement and self.straightness > straight:
                    limit = max(limit, factor * usual / math.sqrt(age + 0.1))
        return limit


def straightness(search: Search) -> float:
    """What the first trial brought of what the slope promised, within ±2; NaN: none was measured.

    So it is of a search that is lost in the noise of the loss: that bends no line.

    >>> straightness(Search(1.0, -1.0, 2.0, (0.5,), (0.75,), 0.5, accepted=True, capped=True))
    0.5
    """
    promised = -search.trial_steps[0] * search.slope if search.trial_steps else 0.0
    if not promised > 0.0 or (search.rejected and not search.step_size):
        return math.nan
    share = (search.loss - search.trial_losses[0]) / promised
    return min(2.0, max(-2.0, share)) if math.isfinite(share) else -2.0


def _mean(old: float, new: float, count: int) -> float:
    """The mean of `count` values and `new`, moving as soon as that is more than ten."""
    return old + max(NEWS, 1.0 / (count + 1)) * (new - old)
