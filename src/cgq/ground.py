"""What a step stands on: a copy of θ, the numbers the ranks agree on, the step in hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from cgq.closure import loss_value
from cgq.flat import Buffer
from cgq.foresight import Plan
from cgq.memory import Residual, Vectors
from cgq.options import Options
from cgq.policy import first_trial
from cgq.precision import rounding
from cgq.progress import Progress
from cgq.ranks import Ranks
from cgq.scalars import Number, least, stacked, times


class Snapshot:
    """θ of before the step.

    It refers to no batch, so that it goes with its step: waiting for the collector of garbage, it
    would leave copies of the network in a device's memory.
    """

    def __init__(self, memory: Vectors) -> None:
        self._memory = memory

    @cached_property
    def buffer(self) -> Buffer:
        """As one vector, of which the parameters are then moved away."""
        layout = self._memory.layout
        joined = self._memory.joined()
        if joined is None:
            return layout.gathered(layout.values())
        blocks = [block.clone() for block in joined.blocks]
        return Buffer(blocks, layout.parts_of(blocks), [])

    def parts(self) -> Iterable[Tensor]:
        """Run by run."""
        layout = self._memory.layout
        if layout.on_host:  # where a gathered copy would gain nothing
            return layout.parts(layout.values(), self._memory.scratch.views)
        return self.buffer.parts


class Drift(NamedTuple):
    """A step without a search. Floats on the host, 0-dim tensors on a device."""

    phi_0: Number
    nil: Number  # 0, or NaN where not all is finite that the step is made of
    alpha: Number  # on a device NaN where `nil` is, and perhaps infinite along no update
    beta: Number
    reach: Number


class Ground(ABC):
    """What a step is decided from. No number is read that the host would have to wait for."""

    sign = 1.0
    residual: Residual
    decays: Sequence[float]
    snapshot: Snapshot

    def __init__(
        self, memory: Vectors, options: Options, ranks: Ranks, progress: Progress, max_step: float
    ) -> None:
        self._layout, self._options, self._ranks = memory.layout, options, ranks
        self._before, self._max_step = progress, max_step

    @abstractmethod
    def plan(self, loss: Tensor | float, error: float) -> Plan:
        """What a search starts from, of a loss whose relative error is seen to be `error`."""

    @abstractmethod
    def drift(self, loss: Tensor | float | None) -> Drift:
        """What a step without a search comes to: the average step."""

    @abstractmethod
    def mixture(self, beta: Number) -> tuple[Number, Number]:
        """a and b in p_t = -a·g + b·p_{t-1}."""

    def first_trial(self, ceiling: Number) -> Number:
        """What a search tries first, unless noise asks for more."""
        if not self._options.shrinks_trial:
            return ceiling
        return first_trial(self._options.probe, ceiling) * self._before.decay.scale

    def average_step(self, ceiling: Number) -> Number:
        """The averaged step under this ceiling; before any search, what a search tries first."""
        if self._options.max_relative_step is not None:
            return self._share * ceiling
        average = self._before.average
        return least(average or first_trial(self._options.probe, self._max_step), ceiling)

    @property
    def _share(self) -> float:
        """What part of a relative ceiling is used without a search."""
        return self._before.average or 1.0

    def _noise(self, phi_0: Number, error: float) -> Number:
        """How far the loss may be off."""
        return max(error, rounding(self._layout.dtypes)) * abs(phi_0)

    def _value(self, loss: Tensor | float | None) -> Number:
        return 0.0 if loss is None else times(self.sign, loss_value(loss, self._layout.device))

    def _agreed(self, *numbers: Number) -> list[Number]:
        """The numbers as the ranks see them together: floats on the host, elsewhere unread."""
        layout = self._layout
        if not self._ranks.several:
            return [float(x) for x in numbers] if layout.on_host else list(numbers)
        agreed = self._ranks.mean(stacked(layout.device, *numbers))
        return agreed.tolist() if layout.on_host else list(agreed.unbind())
