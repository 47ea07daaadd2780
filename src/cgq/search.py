"""The feedback loop: fit a parabola, check its minimum, refit. Numbers only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from cgq.parabola import Fit, Parabola

# A trial whose loss is not finite, or whose parabola has no minimum ahead, tells only "too far".
BACKTRACK = 0.1


@dataclass(frozen=True)
class Search:
    """What one line search saw and chose.

    `step_size` is 0.0 when no trial could be taken: none was finite, or none that was left after
    backing off was lower, or the first parabola was `rejected`: what it was fitted to is noise.
    `curvature` is the last parabola's 2A.
    """

    loss: float
    slope: float
    curvature: float
    trial_steps: tuple[float, ...]
    trial_losses: tuple[float, ...]
    step_size: float
    accepted: bool
    capped: bool
    rejected: bool = False
    in_vain: int = 0
    """Measurements that an accelerator began ahead and the search did not ask for."""

    @property
    def evaluations(self) -> int:
        """How many times the loss was measured besides at the starting point."""
        return len(self.trial_steps) + self.in_vain

    def seen_with(self, sign: float) -> Search:
        """The same search in terms of the user's loss, whose `sign`-fold was minimised."""
        if sign == 1.0:
            return self
        return replace(
            self,
            loss=sign * self.loss,
            slope=sign * self.slope,
            curvature=sign * self.curvature,
            trial_losses=tuple(sign * loss for loss in self.trial_losses),
        )


def quadratic_search(
    phi: Callable[[float], float],
    loss: float,
    slope: float,
    *,
    trial: float,
    ceiling: float,
    fit: Fit,
    max_fits: int,
    noise: float = 0.0,
) -> Search:
    """Find a step along φ, whose value and slope at 0 are `loss` and `slope` (< 0).

    At most `max_fits` times: fit q to the trials; if A ≤ 0 take the trial; otherwise measure
    α* = min(-B/2A, ceiling) and accept it when q(α*) > 0 and φ(α*) < φ(0), else make it the next
    trial. After the last fit its α* is taken. No point is measured twice, so φ is called at most
    1 + `max_fits` times. The test q(α*) > 0 presumes a loss that is never negative, and is left
    out where φ(0) ≤ 0 shows that this one can be.

    `noise` is how far φ may be off. A fit whose Aα² and Bα are both less than that at its trial is
    rejected, and ends the search: with the α* of the fit before it, if there was one.

    >>> from cgq import two_point
    >>> found = quadratic_search(lambda x: (x - 2) ** 2 + 1, 5.0, -4.0,
    ...                          trial=0.1, ceiling=10.0, fit=two_point, max_fits=3)
    >>> round(found.step_size, 9), found.accepted, found.evaluations
    (2.0, True, 2)
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
