"""What a search is: a function that chooses a step along a line. Numbers only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch

Phi = Callable[[float], float]
"""φ(α), the batch loss at the trial point θ + αd. Each call is a forward pass."""


class Start(NamedTuple):
    """What is known before the first trial.

    >>> start = Start(loss=5.0, slope=-4.0, trial=0.1, ceiling=1.0)
    >>> start.loss + start.ceiling * start.slope  # what the slope alone promises
    1.0
    """

    loss: float
    """φ(0)."""
    slope: float
    """φ'(0), negative where the direction descends."""
    trial: float
    """A first step that stands out of the noise."""
    ceiling: float
    """No step is longer."""
    noise: float = 0.0
    """How far φ may be off."""
    tolerance: float = 0.0
    """A rise below this is none: it is less than what tells one batch from the next."""
    squared_length: float = math.nan
    """That of the direction d, without decoupled decay, for a search with `needs_length`."""
    dtype: torch.dtype = torch.float64
    """That of the loss."""
    memory: Mapping[str, float] = MappingProxyType({})
    """What the search kept of the last one."""


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
    unused: int = 0
    """How many measurements the search did not ask for. An accelerator began them ahead, or φ(0)
    was measured once more, to see whether the closure repeats itself."""
    memory: dict[str, float] = field(default_factory=dict)
    """Numbers for the next search. They are kept in the parameter groups."""

    @property
    def evaluations(self) -> int:
        """How many times the loss was measured besides at the starting point."""
        return len(self.trial_steps) + self.unused

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


class SearchRule(Protocol):
    """Chooses a step along φ: a function, or an object that is called like one.

    It is asked where the slope is negative. A step of 0.0 after trials means that none could be
    taken: the optimizer step is skipped. Three attributes are optional. `needs_length = True` asks
    for the length of d, squared. `any_slope = True`: it is asked even where the direction climbs;
    else `ConjugateDescent` restarts from steepest descent there, and `LineSearch` takes the average
    step. `memory` holds first values of the numbers that the search keeps from batch to batch.

    >>> from cgq import ConjugateDescent
    >>> def halving(phi, start):
    ...     steps, losses = [start.trial], [phi(start.trial)]
    ...     while losses[-1] >= start.loss and len(steps) < 10:
    ...         steps.append(steps[-1] / 2)
    ...         losses.append(phi(steps[-1]))
    ...     accepted = losses[-1] < start.loss
    ...     return Search(start.loss, start.slope, math.nan, tuple(steps), tuple(losses),
    ...                   step_size=steps[-1] if accepted else 0.0, accepted=accepted, capped=False)
    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> optimizer = ConjugateDescent([weight], search=halving)
    >>> loss = optimizer.step(lambda: 10 * weight.square().sum() + 100)
    >>> optimizer.last_search.evaluations
    2
    """

    def __call__(self, phi: Phi, start: Start, /) -> Search: ...
