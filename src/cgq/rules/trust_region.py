"""The trust region of `LineSearch`: how long a step may be, by what the run shows. Numbers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from cgq.rules.reach import USUAL, near, usual, widest
from cgq.rules.search import Search
from cgq.rules.trust import PATIENCE, SAFE, Trust, moving_mean

NEWS = 0.2  # agreement is a mean over about the last five searches ...
LINE_NEWS = 0.1  # ... and straightness over the last ten
SURE, PROOF = 2.0, 4.0  # standard errors: in hundreds of searches, chance alone has two
UNMEASURED = 0.8  # a line that was not measured yet is straight enough to go on, not to go far
LARGE_OUTPUTS = 5  # losses, at first: any step that only shrinks the outputs is agreed with
BENT, STRAIGHT = 0.5, 0.7  # shares of what the slope promises that came
STRETCH = 1.5  # where the line is straight, an earned ceiling may be so much higher:
STRETCHES = 0.65, 0.75  # from nothing to all of it, for a jump would upset what has settled
# A search, where the next batch agrees as well as the one that chose the step: up to ρ, and beyond
# it along a line that does not bend at all. Wide steps at the start of a transformer look good for
# ten batches and cost it its end.
QUICK, FURTHER = 1.0, 0.25
WIDENS = 0.95, 1.0  # from nothing to all of `FURTHER`
WIDER, NARROWER, SHORTER = 1.2, 0.95, 0.7  # a search: what is earned, too wide, rejected
OPPOSED = -0.2  # agreement, as on an MLP around SGD: more than ρ is too much there
FAMILIAR = 10  # searches, at first, whose rates are known
LEAP = 1.5  # times a known rate: so far a run goes where nothing tells that it is well
AT_ONCE = 2.0  # times what was known: no single batch makes a rate known that is far beyond


class Tried(NamedTuple):
    """The ceiling that a search had."""

    rate: float
    """The base's rate, before any schedule, at which its update is so long."""
    length: float
    """Relative to the weights."""
    visible: float = 0.0
    """What the digits of the weights show of a relative length."""


UNKNOWN = Tried(math.nan, math.nan)


class Region(NamedTuple):
    """A relative ceiling that two judges may widen.

    *Agreement* is the cosine between the last step and the descent that the next batch asks for,
    -g·s/(|g||s|). A batch always agrees with the step it chose itself; the next one did not choose
    it. What share of the one is in the other says how much of a step holds for other batches too,
    and so fast the region grows, beyond ρ only along a straight line; where that share is lost in
    noise, as on the plateau a plain VGG starts from, a step's length has to be earned by a falling
    loss.

    What neither confirms may be long in the weights, but not in the rate: see `_familiar`.

    *Straightness* is what a trial brought of what the slope promised, (φ(0) - φ(γ))/(γ|φ'(0)|):
    1 on a straight line, ½ at a parabola's minimum, 0 where nothing is gained.

    >>> region, trust = Region(), Trust(losses=50, earned=0.005)
    >>> straight = Search(1.0, -1.0, 0.0, (0.1,), (0.9,), 0.1, accepted=True, capped=True)
    >>> for step in range(20):
    ...     region = region.after(
    ...         straight, 0.1, 0.2, steps=step, trust=trust, rho=0.005, fade=1.0, age=0.05,
    ...         tried=UNKNOWN)
    >>> round(region.radius, 4)
    0.0258
    """

    radius: float = SAFE
    """The longest step, relative to the weights, unless ρ allows less by now."""
    agreement: float = 0.0
    own_agreement: float = 0.0
    """The same of a step with the batch that chose it."""
    agreement_variance: float = 0.0
    straightness: float = UNMEASURED
    agreements: int = 0
    """How many were measured, as of lines."""
    lines: int = 0
    judged_at: int = 0
    """The number of steps at the last search."""
    known_rate: float = 0.0
    """The highest rate at which batches agreed or the loss fell, or with which the run began."""

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> Region:
        """What a parameter group says."""
        return cls(*(group[name] for name in cls._fields))

    @classmethod
    def earned_before(cls, group: Mapping[str, Any], rho: float) -> Region:
        """That of a run whose state is from before there was one."""
        return cls(radius=max(SAFE, min(rho, group.get("earned", SAFE) / 2.0)))

    @property
    def confirmed(self) -> float:
        """What share of a step's agreement with its own batch the next one confirms.

        >>> Region(agreement=0.05, own_agreement=0.2).confirmed
        0.25
        """
        return min(1.0, self.agreement / self.own_agreement) if self.own_agreement > 0.0 else 0.0

    @property
    def certainty(self) -> float:
        """How many standard errors the mean agreement is above zero."""
        count = min(self.agreements, 2.0 / NEWS - 1.0)
        if not self.agreement_variance:
            return math.copysign(math.inf, self.agreement) if self.agreement else 0.0
        return self.agreement * math.sqrt(count / self.agreement_variance)

    def ceiling(self, rho: float, fade: float, age: float, most: float = 1.0) -> float:
        """The radius, within the widest that ρ allows now.

        >>> Region(radius=0.02).ceiling(0.001, fade=1.0, age=0.9)
        0.002
        """
        stretched = max(rho * fade, STRETCH * min(rho, USUAL) * fade)
        return min(self.radius, max(stretched, widest(rho, age, most)))

    def after(
        self,
        search: Search,
        agreement: float,
        own_agreement: float,
        *,
        steps: int,
        trust: Trust,
        rho: float,
        fade: float,
        age: float,
        tried: Tried,
        most: float = 1.0,
    ) -> Region:
        """After a search; `agreement` is NaN where nothing is known of the step before.

        ρ·fade is the ceiling now, no more than most·ρ at any time, and `age` how many times
        `full_steps` the run has taken.
        """
        straight = straightness(search)
        judged = self._judged(straight, agreement, own_agreement)._replace(judged_at=steps)
        judged = judged._knowing(tried.rate, trust)
        familiar = judged._familiar(tried, trust)
        if straight < 0.0 and search.step_size < search.trial_steps[0]:
            shorter = max(SHORTER * self.radius, min(SAFE / 2.0, rho * fade, self.radius))
            return judged._replace(radius=min(shorter, familiar))
        earned, radius = judged.earned(trust, rho, fade), self.radius
        if judged.agreement < OPPOSED:
            earned = min(earned, judged.earned(trust, rho, min(fade, 1.0)))
        sure = usual(earned, rho)
        if radius < earned:  # not while trials mostly climb: the next one would too
            least_straight = 0.0 if radius < sure else STRETCHES[0]
            new = min(earned, WIDER * radius) if judged.straightness > least_straight else radius
        else:  # fade from where growth has led
            new = max(earned, radius * math.sqrt((self.judged_at + 1) / (steps + 1)))
        if judged._may_grow(trust):
            new = max(new, judged._grown(rho, age, most))
        elif judged.certainty < -SURE or judged.straightness < BENT:
            new = min(new, max(sure, NARROWER * radius))
        return judged._replace(radius=min(new, max(earned, widest(rho, age, most)), familiar))

    def _knowing(self, rate: float, trust: Trust) -> Region:
        """Knowing this rate, if all is well with it."""
        proven = self.certainty > PROOF or trust.has_fallen
        if not rate > self.known_rate or not (proven or trust.searches <= FAMILIAR):
            return self
        known = min(rate, AT_ONCE * self.known_rate) if self.known_rate else rate
        return self._replace(known_rate=known)

    def _familiar(self, tried: Tried, trust: Trust) -> float:
        """How wide it may be without a rate that is far beyond what is known.

        Where a gradient vanishes, as on the plateau of a plain VGG, a step of the same relative
        length has a rate that grows without end; along that way units go dark. One batch narrows
        it no more than a trial that failed, and none below what the weights can show.
        """
        if not tried.rate > 0.0 or not self.known_rate:
            return math.inf
        leap = LEAP * max(1.0, trust.losses / PATIENCE)
        familiar = tried.length * leap * self.known_rate / tried.rate
        return max(familiar, SHORTER * self.radius, tried.visible)

    def _judged(self, straight: float, agreement: float, own: float) -> Region:
        """With what was measured now."""
        judged = self
        if math.isfinite(agreement) and math.isfinite(own):
            n, off = self.agreements, agreement - self.agreement
            judged = judged._replace(
                agreement=moving_mean(self.agreement, agreement, n, NEWS),
                own_agreement=moving_mean(self.own_agreement, own, n, NEWS),
                agreement_variance=moving_mean(self.agreement_variance, off * off, n, NEWS),
                agreements=n + 1,
            )
        if math.isfinite(straight):
            mean = moving_mean(self.straightness, straight, self.lines, LINE_NEWS)
            judged = judged._replace(straightness=mean, lines=self.lines + 1)
        return judged

    def earned(self, trust: Trust, rho: float, fade: float) -> float:
        """How wide it may be by the loss alone."""
        full = rho * fade
        earned = min(full, max(SAFE, trust.earned / 2.0))
        if earned < full:
            return earned
        stretch = 1.0 + (STRETCH - 1.0) * _share(self.straightness, *STRETCHES)
        return max(full, stretch * min(rho, USUAL) * fade)

    def _may_grow(self, trust: Trust) -> bool:
        """Whether the next batch surely agrees, along a line that is straight."""
        sure = self.certainty > SURE and self.straightness > STRAIGHT
        return sure and trust.losses > LARGE_OUTPUTS

    def _grown(self, rho: float, age: float, most: float) -> float:
        """As wide as agreement makes it: quickly ρ, and more the straighter the line is."""
        quick = min(near(rho, most), self.radius * (1.0 + QUICK * self.confirmed))
        growth = FURTHER * _share(self.straightness, *WIDENS) * self.confirmed
        further = self.radius * (1.0 + growth)
        return min(widest(rho, age, most), max(quick, further))


def _share(value: float, none: float, all_of_it: float) -> float:
    """How far the value is from where nothing begins to where all is reached, within 0 and 1."""
    return min(1.0, max(0.0, (value - none) / (all_of_it - none)))


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
