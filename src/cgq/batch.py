"""The numbers a step is decided from: momentum, slope and ceiling, of a batch's gradient."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cgq.foresight import Plan
from cgq.geometry import Geometry, Shape, measured_geometry
from cgq.ground import Drift, Ground, Snapshot
from cgq.memory import Memory
from cgq.momentum import momentum_of
from cgq.options import Options
from cgq.policy import FIRST_TRIAL, clear_trial
from cgq.progress import Progress
from cgq.ranks import Ranks
from cgq.scalars import Number, choose, is_finite, least, nil
from cgq.vector import Vector


class Batch(Ground):
    """A mini-batch's gradient next to what is remembered of those before.

    `max_step` is the absolute ceiling of α. Nothing is changed here.
    """

    def __init__(
        self,
        memory: Memory,
        grads: list[Tensor],
        shapes: Sequence[Shape],
        max_step: float,
        *,
        options: Options,
        ranks: Ranks,
        progress: Progress,
        unclipped: list[Tensor] | None,
    ) -> None:
        super().__init__(memory, options, ranks, progress, max_step)
        self._memory, self._shapes = memory, shapes
        self.sign = -1.0 if options.maximize else 1.0
        self.decays = [shape.coupled for shape in shapes]
        self.residual = memory.new_residual(grads, self.sign, self.decays)
        layout = memory.layout
        self._g = Vector(layout, self.residual.parts, -self.residual.scale)
        self._p = Vector(layout, lambda: memory.direction.parts)
        self.snapshot = Snapshot(memory)
        self._theta = Vector(layout, self.snapshot.parts)
        self._f: Vector | None = self._g  # ∇f; None: it is made of g and θ
        if unclipped is not None or any(self.decays):
            fs = grads if unclipped is None else unclipped
            apart = Vector(layout, lambda: layout.parts(fs, memory.scratch.views), self.sign)
            self._f = apart if layout.on_host or unclipped is not None else None

    def plan(self, loss: Tensor | float, error: float) -> Plan:
        """What a search starts from, of a loss whose relative error is seen to be `error`."""
        phi_0, gg, beta, reached, *products = self._agreed(
            self._value(loss), *self._always(), *self._geometry(with_slope=True)
        )
        geometry = Geometry(*products)
        beta, reach = self._within_range(gg, beta, reached)
        slope = geometry.slope(*self.mixture(beta))
        climbs = slope >= 0.0  # then restart from steepest descent
        beta, reach = choose(climbs, 0.0, beta), choose(climbs, gg**0.5, reach)
        slope = choose(climbs, geometry.slope(1.0, 0.0), slope)
        ceiling = self._ceiling(geometry, beta, reach)
        noise = self._noise(phi_0, error)
        trial = clear_trial(self.first_trial(ceiling), slope, noise, ceiling)
        return Plan(phi_0, gg, slope, ceiling, trial, beta, reach, noise)

    def drift(self, loss: Tensor | float | None) -> Drift:
        """What a step without a search comes to: the average step."""
        phi_0, gg, beta, reached, *products = self._agreed(
            self._value(loss), *self._always(), *self._geometry(with_slope=False)
        )
        beta, reach = self._within_range(gg, beta, reached)
        ceiling = self._ceiling(Geometry(*products), beta, reach)
        zero = nil(phi_0) * gg
        return Drift(phi_0, zero, self.average_step(ceiling) + zero, beta, reach)

    def mixture(self, beta: Number) -> tuple[Number, Number]:
        """a and b in p_t = -a·g + b·p_{t-1}."""
        return (1.0 + beta, beta * beta) if self._options.nesterov else (1.0, beta)

    def _always(self) -> tuple[Number, Number, Number]:
        """What every step needs: g·g, the momentum, and the bound of the last |p|."""
        return self._g @ self._g, self._beta(), self._before.reach

    def _within_range(self, gg: Number, beta: Number, reached: Number) -> tuple[Number, Number]:
        """The momentum, or 0 if p could then leave the range of its dtype; and a bound of |p|."""
        limit = self._memory.layout.range / 8.0
        length = gg**0.5
        reach = length + beta * reached
        fits = (reach < limit) & (beta < limit)
        return choose(fits, beta, 0.0), choose(fits, reach, length)

    def _beta(self) -> Number:
        """The momentum to apply: the rule's, bounded and smoothed, or the number given."""
        momentum, previous = self._options.momentum, self._memory.residual
        if previous is None or not callable(momentum):
            return momentum
        h = Vector(self._memory.layout, lambda: previous.parts, -1.0)
        found = momentum_of(momentum, self._g, h, self._p, self._options.max_momentum)
        share = self._options.smoothing
        return share * self._before.beta + (1.0 - share) * found if share else found

    def _geometry(self, with_slope: bool) -> Geometry:
        with_length = self._options.max_relative_step is not None
        vectors = self._theta, self._f, self._g, self._p
        return measured_geometry(*vectors, self._shapes, slope=with_slope, length=with_length)

    def _ceiling(self, geometry: Geometry, beta: Number, reach: Number) -> Number:
        """min(α_max, ρ·|θ|/|p|), and what keeps θ in the range of its dtype.

        Decoupled decay must not turn θ around, so 1/decay is a bound too. A θ of zeros has no
        relative length to keep to: there the first trial is the ceiling.
        """
        a, b = self.mixture(beta)
        # 1.0: where p vanishes, any step will do.
        ceiling = least(self._max_step, self._memory.layout.range / 8.0 / (1.0 + a * reach))
        rho = self._options.max_relative_step
        if rho is None:
            return ceiling
        decay = max(shape.ratio * shape.decoupled for shape in self._shapes)
        if decay:
            ceiling = least(ceiling, 1.0 / decay)
        length = geometry.squared_length(a, b)
        if not isinstance(length, Tensor) and not length > 0.0:
            return least(ceiling, FIRST_TRIAL)
        squared = geometry.tt / length
        usable = (squared > 0) & is_finite(squared)
        return least(ceiling, choose(usable, rho * squared**0.5, FIRST_TRIAL))
