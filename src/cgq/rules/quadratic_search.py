"""The feedback loop: fit a parabola, check its minimum, refit. Numbers only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cgq.rules.parabola import Fit, Parabola, least_squares, two_point
from cgq.rules.search import Phi, Search, Start

# A trial whose loss is not finite, or whose parabola has no minimum ahead, tells only "too far".
BACKTRACK = 0.1


@dataclass(frozen=True)
class QuadraticSearch:
    """The paper's search, as an object: `quadratic_search` with these settings.

    >>> search = QuadraticSearch()
    >>> search(lambda x: (x - 2) ** 2 + 1, Start(5.0, -4.0, trial=0.1, ceiling=1.5)).step_size
    1.5
    """

    fit: Fit = two_point
    max_fits: int = 3
    descent_suffices: bool = False
    """Whether a first trial at the ceiling is taken if it lowers the loss, however little."""

    @property
    def begins_with_two_point(self) -> bool:
        """Whether its first fit is that of `two_point`, which a device can make by itself."""
        return self.fit in (two_point, least_squares)

    def __call__(self, phi: Phi, start: Start) -> Search:
        return quadratic_search(
            phi,
            start.loss,
            start.slope,
            trial=start.trial,
            ceiling=start.ceiling,
            fit=self.fit,
            max_fits=self.max_fits,
            noise=start.noise,
            descent_suffices=self.descent_suffices,
            tolerance=start.tolerance,
        )


def quadratic_search(
    phi: Phi,
    loss: float,
    slope: float,
    *,
    trial: float,
    ceiling: float,
    fit: Fit,
    max_fits: int,
    noise: float = 0.0,
    descent_suffices: bool = False,
    tolerance: float = 0.0,
) -> Search:
    """Find a step along φ, whose value and slope at 0 are `loss` and `slope` (< 0).

    At most `max_fits` times: fit q to the trials; if A ≤ 0 take the trial; otherwise measure
    α* = min(-B/2A, ceiling) and accept it when q(α*) > 0 and φ(α*) < φ(0), else make it the next
    trial. After the last fit its α* is taken. No point is measured twice, so φ is called at most
    1 + `max_fits` times. The test q(α*) > 0 presumes a loss that is never negative, and is left
    out where φ(0) ≤ 0 shows that this one can be.

    `noise` is how far φ may be off. A fit whose Aα² and Bα are both less than that at its trial is
    rejected, and ends the search: with the α* of the fit before it, if there was one.

    With `descent_suffices` a first trial at the ceiling is taken if φ is lower there, or higher by
    less than `tolerance`, and no parabola may shorten it. The minimum along one batch's line is
    shorter than what many batches want, and steps that stop there sharpen the next lines.

    >>> from cgq import two_point
    >>> found = quadratic_search(lambda x: (x - 2) ** 2 + 1, 5.0, -4.0,
    ...                          trial=0.1, ceiling=10.0, fit=two_point, max_fits=3)
    >>> round(found.step_size, 9), found.accepted, found.evaluations
    (2.0, True, 2)
    >>> found = quadratic_search(lambda x: (x - 2) ** 2 + 1, 5.0, -4.0, trial=3.0, ceiling=3.0,
    ...                          fit=two_point, max_fits=3, descent_suffices=True)
    >>> found.step_size, found.accepted, found.evaluations
    (3.0, True, 1)
    """
    measured: dict[float, float] = {}  # every trial, in order
    usable: dict[float, float] = {}  # those with a finite loss

    def measure(step: float) -> None:
        measured[step] = value = phi(step)
        if math.isfinite(value):
            usable[step] = value

    def outcome(step: float, accepted: bool, rejected: bool = False) -> Search:
        return Search(
            loss=loss,
            slope=slope,
            curvature=q.curvature,
            trial_steps=tuple(measured),
            trial_losses=tuple(measured.values()),
            step_size=step,
            accepted=accepted,
            capped=step >= ceiling,
            rejected=rejected,
        )

    q = Parabola(math.nan, slope, loss)
    chosen = 0.0
    measure(trial)
    for _ in range(max_fits):
        if trial in usable:
            # Newest last, also where the newest trial is one met before.
            usable[trial] = usable.pop(trial)
            q = Parabola(*map(float, fit(loss, slope, list(usable), list(usable.values()))))
            if q.is_level(trial, noise):
                return outcome(trial if len(measured) > 1 else 0.0, False, rejected=True)
            at_ceiling = descent_suffices and len(measured) == 1 and trial >= ceiling
            if at_ceiling and usable[trial] < loss + tolerance:
                return outcome(trial, True)
        if trial not in usable or not q.is_finite or (q.a > 0 and q.minimiser <= 0):
            trial *= BACKTRACK
            if not trial:
                break
            if trial not in measured:
                measure(trial)
            continue
        if q.a <= 0:
            return outcome(trial, usable[trial] < loss)
        chosen = min(q.minimiser, ceiling)
        known = chosen in measured
        if not known:
            measure(chosen)
        if chosen in usable and usable[chosen] < loss and (q(chosen) > 0 or loss <= 0):
            return outcome(chosen, True)
        if known:  # the same trials would give the same parabola again
            break
        trial = chosen
    if chosen not in usable:
        best = min(usable, key=lambda step: usable[step], default=0.0)
        chosen = best if best and usable[best] < loss else 0.0
    return outcome(chosen, False)
