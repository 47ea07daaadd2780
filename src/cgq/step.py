"""One step of CGQ: momentum, direction, line, search. Owns the arithmetic, keeps no state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cgq.closure import Objective, loss_value
from cgq.flat import Vector
from cgq.line import Geometry, Line, Shape, drift, measured_geometry
from cgq.memory import Memory
from cgq.momentum import momentum_of
from cgq.options import Options
from cgq.policy import FIRST_TRIAL, first_trial, smoothed
from cgq.progress import Progress
from cgq.ranks import Ranks
from cgq.scalars import Number, as_tensor, least, stacked
from cgq.search import Search, quadratic_search


class Outcome(NamedTuple):
    """What became of a step. `skipped` is a tensor where the host did not look."""

    progress: Progress
    skipped: bool | Tensor = False
    search: Search | None = None


class Step:
    """A mini-batch's gradient, ready to be turned into a move of the parameters.

    `max_step` is the absolute ceiling of α. `unclipped` are the gradients of the loss where `grads`
    are not. A step that is skipped has changed nothing.
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
        unclipped: list[Tensor] | None = None,
    ) -> None:
        self._memory, self._grads, self._shapes = memory, grads, shapes
        self._max_step, self._options, self._ranks = max_step, options, ranks
        self._before = progress
        self._sign = -1.0 if options.maximize else 1.0
        self._decays = [shape.coupled for shape in shapes]
        self._new = memory.new_residual(grads, self._sign, self._decays)
        layout = memory.layout
        self._g = Vector(layout, self._new.parts, -self._new.scale)
        self._p = Vector(layout, lambda: memory.direction.parts)
        self._theta = Vector(layout, lambda: layout.parts(layout.values(), memory.scratch.views))
        self._f = self._g
        if any(self._decays) or unclipped is not None:
            fs = grads if unclipped is None else unclipped
            self._f = Vector(layout, lambda: layout.parts(fs, memory.scratch.views), self._sign)

    def searched(self, objective: Objective, loss: Tensor | float) -> Outcome:
        """Move to the minimum of the parabola along the line."""
        phi_0, gg, beta, reached, *products = self._on_host(
            self._sign * self._value(loss), *self._always(), *self._geometry()
        )
        geometry = Geometry(*products)
        beta, reach = self._within_range(gg, beta, reached)
        slope = geometry.slope(*self._mixture(beta))
        if slope >= 0.0:  # not downhill: restart from steepest descent
            beta, reach = 0.0, math.sqrt(gg)
            slope = geometry.slope(1.0, 0.0)
        if not all(map(math.isfinite, (phi_0, gg, slope))):
            return Outcome(self._before, skipped=True)
        ceiling = self._ceiling(geometry, beta, reach)
        if slope >= 0.0 or not ceiling:  # stationary, or weight decay climbs: nothing to search
            return self._drifted(beta, reach, ceiling)
        return self._along_line(objective, phi_0, slope, ceiling, beta, reach)

    def _along_line(
        self,
        objective: Objective,
        phi_0: float,
        slope: float,
        ceiling: float,
        beta: float,
        reach: float,
    ) -> Outcome:
        options, before, memory = self._options, self._before, self._memory
        is_relative = options.max_relative_step is not None
        if is_relative and options.probe is None:
            trial = ceiling
        else:
            trial = first_trial(options.probe, ceiling) * before.decay.scale
        objective.prepare_probes()
        a, b = self._mixture(beta)
        line = Line(memory, self._grads, self._shapes, sign=self._sign, a=a, b=b)

        def phi(alpha: float) -> float:
            line.move_to(alpha)
            value = objective.probe(memory.layout.device)
            return self._sign * float(self._ranks.mean_number(value))

        try:
            search = quadratic_search(
                phi,
                phi_0,
                slope,
                trial=trial,
                ceiling=ceiling,
                fit=options.fit,
                max_fits=options.max_fits,
            )
            unit = ceiling if is_relative else 1.0
            average = smoothed(before.average, search.step_size / unit, options.smoothing)
            alpha = min(average * unit, ceiling) if search.step_size else 0.0
            line.move_to(alpha)
        except BaseException:
            line.move_back()
            raise
        if not search.step_size:
            return Outcome(before, skipped=True, search=search.seen_with(self._sign))
        objective.end_probes()
        new = self._new
        if memory.is_gathered(new):
            new = memory.residual_at_snapshot(self._grads, self._sign, self._decays)
        memory.remember(new, beta)
        decay = before.decay
        if not is_relative or options.probe is not None:
            decay = decay.after(trial, search.step_size)
        progress = Progress(alpha, beta, average, decay, reach)
        return Outcome(progress, search=search.seen_with(self._sign))

    def unsearched(self, loss: Tensor | float | None) -> Outcome:
        """Move by the average step."""
        value = 0.0 if loss is None else self._value(loss)
        numbers = value, *self._always(), *self._geometry(with_slope=False)
        if not self._memory.layout.on_host:
            return self._drifted_on_device(*numbers)
        value, gg, beta, reached, *products = self._on_host(*numbers)
        if not (math.isfinite(value) and math.isfinite(gg)):
            return Outcome(self._before, skipped=True)
        beta, reach = self._within_range(gg, beta, reached)
        return self._drifted(beta, reach, self._ceiling(Geometry(*products), beta, reach))

    def _drifted(self, beta: float, reach: float, ceiling: float) -> Outcome:
        alpha = self._average_step(ceiling)
        self._memory.remember(self._new, beta)
        self._drift(alpha, beta)
        return Outcome(self._before._replace(step_size=alpha, beta=beta, reach=reach))

    def _drifted_on_device(self, *numbers: Number) -> Outcome:
        """The same without the host looking: what is not finite is left out by `where`."""
        agreed = self._ranks.mean(stacked(self._memory.layout.device, *numbers))
        value, gg, beta, reached, *products = agreed.unbind()
        keep = value.isfinite() & gg.isfinite()
        beta, reach = self._within_range(gg, beta, reached)
        alpha = self._average_step(self._ceiling(Geometry(*products), beta, reach))
        alpha = torch.where(keep, as_tensor(alpha, keep.device), 0.0)
        beta = torch.where(keep, beta, self._before.beta)
        reach = torch.where(keep, reach, reached)
        self._memory.remember_where(keep, beta)
        self._drift(alpha, beta)
        progress = self._before._replace(step_size=alpha, beta=beta, reach=reach)
        return Outcome(progress, skipped=~keep)

    def _always(self) -> tuple[Number, Number, Number]:
        """What every step needs: g·g, the momentum, and the bound of the last |p|."""
        return self._g @ self._g, self._beta(), self._before.reach

    def _within_range(self, gg: Number, beta: Number, reached: Number) -> tuple[Number, Number]:
        """The momentum, or 0 if p could then leave the range of its dtype; and a bound of |p|."""
        limit = self._memory.layout.range / 8.0
        length = gg**0.5
        reach = length + beta * reached
        if isinstance(reach, Tensor):
            fits = (reach < limit) & (beta < limit)
            return torch.where(fits, beta, 0.0), torch.where(fits, reach, length)
        return (beta, reach) if reach < limit and beta < limit else (0.0, length)

    def _drift(self, alpha: Number, beta: Number) -> None:
        nesterov = self._options.nesterov
        drift(self._memory, self._new, self._shapes, alpha, beta, nesterov=nesterov)

    def _average_step(self, ceiling: Number) -> Number:
        """The averaged step under this ceiling; before any search, what a search tries first."""
        average = self._before.average
        if self._options.max_relative_step is not None:
            return (average or 1.0) * ceiling
        return least(average or first_trial(self._options.probe, self._max_step), ceiling)

    def _mixture(self, beta: Number) -> tuple[Number, Number]:
        """a and b in p_t = -a·g + b·p_{t-1}."""
        return (1.0 + beta, beta * beta) if self._options.nesterov else (1.0, beta)

    def _beta(self) -> Number:
        """The momentum to apply: the rule's, bounded and smoothed, or the number given."""
        momentum, previous = self._options.momentum, self._memory.residual
        if previous is None or not callable(momentum):
            return momentum
        h = Vector(self._memory.layout, lambda: previous.parts, -1.0)
        found = momentum_of(momentum, self._g, h, self._p, self._options.max_momentum)
        share = self._options.smoothing
        return share * self._before.beta + (1.0 - share) * found if share else found

    def _geometry(self, with_slope: bool = True) -> Geometry:
        with_length = self._options.max_relative_step is not None
        vectors = self._theta, self._f, self._g, self._p
        return measured_geometry(*vectors, self._shapes, slope=with_slope, length=with_length)

    def _ceiling(self, geometry: Geometry, beta: Number, reach: Number) -> Number:
        """min(α_max, ρ·|θ|/|p|), and what keeps θ in the range of its dtype.

        Decoupled decay must not turn θ around, so 1/decay is a bound too. A θ of zeros has no
        relative length to keep to: there the first trial is the ceiling.
        """
        a, b = self._mixture(beta)
        # 1.0: where p vanishes, any step will do.
        ceiling = least(self._max_step, self._memory.layout.range / 8.0 / (1.0 + a * reach))
        rho = self._options.max_relative_step
        if rho is None:
            return ceiling
        decay = max(shape.ratio * shape.decoupled for shape in self._shapes)
        if decay:
            ceiling = least(ceiling, 1.0 / decay)
        length = geometry.squared_length(a, b)
        if isinstance(length, Tensor):
            squared = geometry.tt / length
            usable = (squared > 0) & squared.isfinite()
            return least(ceiling, torch.where(usable, rho * squared.sqrt(), FIRST_TRIAL))
        squared = geometry.tt / length if length > 0 else 0.0
        return least(ceiling, rho * math.sqrt(squared) if squared else FIRST_TRIAL)

    def _value(self, loss: Tensor | float) -> Number:
        return loss_value(loss, self._memory.layout.device)

    def _on_host(self, *numbers: Number) -> list[float]:
        """The numbers as floats, agreed between the ranks; the one time the host must wait."""
        if self._memory.layout.on_host and not self._ranks.several:
            return [float(x) for x in numbers]
        return self._ranks.mean(stacked(self._memory.layout.device, *numbers)).tolist()
