"""The conjugate direction p = -g + βp', as the paper has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cgq.engine.direction import Direction, Plan
from cgq.engine.geometry import Geometry, GroupShare, along, measured_geometry
from cgq.engine.options import ConjugateOptions
from cgq.engine.state import DirectionState, Residual
from cgq.rules.first_trial import FIRST_TRIAL, TrialDecay, clear_trial, first_trial, promising_trial
from cgq.rules.momentum import momentum_of
from cgq.rules.scalars import Number, choose, is_finite, is_zero, least, quotient
from cgq.rules.search import Search
from cgq.vectors.layout import Buffer
from cgq.vectors.line import Combination, Line, by_pieces
from cgq.vectors.process_group import Ranks
from cgq.vectors.products import Dots, Vector, pairs_of, share_ahead


class Conjugate(Direction):
    """A batch's gradient, next to what is remembered of those before.

    `max_step` is the absolute ceiling of α and `rho` the relative one, if there is one; `unclipped`
    are the gradients of the loss, where `grads` are not. Nothing is changed before a move.
    """

    _options: ConjugateOptions

    def __init__(
        self,
        state: DirectionState,
        grads: list[Tensor],
        unclipped: list[Tensor] | None,
        shares: Sequence[GroupShare],
        max_step: Number,
        rho: Number | None,
        *,
        options: ConjugateOptions,
        ranks: Ranks | None,
        before: Mapping[str, Any],
    ) -> None:
        super().__init__(state, options, ranks, before)
        self._state, self._grads, self._shares = state, grads, shares
        self._unclipped = unclipped
        self._max_step, self._rho = max_step, rho
        self.sign = -1.0 if options.maximize else 1.0
        self._decays = [share.coupled for share in shares]
        dots = self._dots = Dots()
        # No function here may refer to this object: a cycle would keep copies of the network in a
        # device's memory until the garbage is collected.
        last = state.residual
        self._p = self._named("p", dots, lambda: state.direction.parts)
        self._h = None if last is None else self._named("h", dots, lambda: last.parts, -1.0)
        if state.squares is not None:
            dots["h", "h"] = state.squares
        self._theta = self._named("θ", dots, self._theta_parts())

    @cached_property
    def _g(self) -> Vector:
        residual = self._residual.vector
        return self._named("g", self._dots, lambda: residual.parts, -self._residual.scale)

    @cached_property
    def _f(self) -> Vector | None:
        """∇f; None: it is made of g and θ."""
        if self._unclipped is None and not any(self._decays):
            return self._g
        return self._loss_gradient(self._unclipped, self._dots)

    @cached_property
    def _residual(self) -> Residual:
        return self._new_residual()

    def _new_residual(self) -> Residual:
        """r = -g; without decay the gradients themselves: a gathered copy would gain nothing."""
        state, grads = self._state, self._grads
        if any(self._decays):
            return state.residual_at(self.layout.values(), grads, self.sign, self._decays)
        parts = list(self.layout.parts(grads, state.scratch.views))
        return Residual(Buffer([], parts, grads), -self.sign)

    def _theta_parts(self) -> Callable[[], Any]:
        layout, like = self.layout, self._state.scratch.views
        return lambda: layout.parts(layout.values(), like)

    def _loss_gradient(self, unclipped: list[Tensor] | None, dots: Dots) -> Vector | None:
        """∇f, where it is not g."""
        layout, like = self.layout, self._state.scratch.views
        grads = self._grads if unclipped is None else unclipped
        return self._named("f", dots, lambda: layout.parts(grads, like), self.sign)

    def plan(self, loss: Tensor | float, error: float) -> Plan:
        """What a search starts from: momentum, slope, ceiling and first trial."""
        with_length = self._is_relative or self._options.needs_length
        theta = self._theta if self._is_relative or self._f is None else None
        vectors = self._g, self._p, self._h, self._f, theta
        phi_0, off = self._shared("plan", [self._phi_0(loss), self._error(error)], *vectors)
        phi_0, off, gg, beta, bound, *products = self._agreed(
            phi_0, off, *self._always(), *self._geometry(slope=True, length=with_length)
        )
        geometry = Geometry(*products)
        beta, bound = self._within_range(gg, beta, bound)
        slope = geometry.slope(*self._mixture(beta))
        if not self._options.any_slope:  # restart from steepest descent
            climbs = slope >= 0.0
            beta, bound = choose(climbs, 0.0, beta), choose(climbs, gg**0.5, bound)
            slope = choose(climbs, geometry.slope(1.0, 0.0), slope)
        ceiling = self._ceiling(geometry, beta, bound)
        noise = off * abs(phi_0)
        trial = self._first_trial(ceiling)
        if self._options.shrinks_trial:  # else it is the relative ceiling itself
            trial = promising_trial(trial, slope, phi_0)
        trial = clear_trial(trial, slope, noise, ceiling)
        squared_length = math.nan
        if self._options.needs_length:
            squared_length = geometry.squared_length(*self._mixture(beta))
        nil = 0.0 * phi_0 * gg
        self._state.wanted["plan"] = set(self._dots)
        return Plan(
            phi_0, nil, slope, ceiling, trial, beta, bound, noise, squared_length=squared_length
        )

    def _shared(self, name: str, along: Sequence[Number], *vectors: Vector | None) -> list[Number]:
        """What comes `along`, while what a plan of this name asked for last is computed at once."""
        wanted = self._state.wanted.get(name, ()) if self.layout.reduce is None else None
        return share_ahead(pairs_of(vectors, wanted), along)

    def average_plan(self, loss: Tensor | float | None) -> Plan:
        """The average step."""
        theta = self._theta if self._is_relative else None
        vectors = self._g, self._p, self._h, theta
        (phi_0,) = self._shared("average", [self._phi_0(loss)], *vectors)
        numbers = [phi_0, *self._always()]
        if self._is_relative:
            numbers += self._geometry(slope=False, length=True)
        phi_0, gg, beta, bound, *products = self._agreed(*numbers)
        beta, bound = self._within_range(gg, beta, bound)
        ceiling = self._ceiling(Geometry(*products), beta, bound)
        nil = 0.0 * phi_0 * gg
        step = self.average_step(ceiling) + nil
        self._state.wanted["average"] = set(self._dots)
        return Plan(phi_0, nil, trial=step, beta=beta, bound=bound)

    def line(self, plan: Plan) -> Line:
        """The points θ + α·(b·p - a·g).

        The snapshot takes the residual's place. So this line is made of what is left, which a
        failed step must not change: the gradient and the remembered p.
        """
        state, (a, b) = self._state, self._mixture(plan.beta)
        terms = (state.direction, b), (Buffer([], [], self._grads), -self.sign * a)
        torch._foreach_copy_(state.scratch.views, self.layout.values())
        return Line(self.layout, along(self._shares, *terms, coupled=a), state.scratch)

    def move(self, plan: Plan) -> None:
        """p ← -g + βp, and α along it."""
        move = by_pieces(self.layout, self._along_new(plan)(plan.trial))
        self._state.remember(self._residual, plan.beta, self._squares, move)

    @property
    def _squares(self) -> list[Any] | None:
        """Its g·g, which is the next step's h·h."""
        return self._dots.get(("g", "g"))

    def remember(self, plan: Plan) -> None:
        """p ← -g + βp."""
        new, state = self._residual, self._state
        if new.vector is state.scratch:  # overwritten by the line's snapshot
            new = state.residual_at(state.scratch.views, self._grads, self.sign, self._decays)
        state.remember(new, plan.beta, self._squares)

    def numbers(self, plan: Plan, search: Search | None = None) -> dict[str, Number]:
        """The momentum, a bound of |p|, and after a search how the first trial shrinks."""
        numbers = {"beta": plan.beta, "direction_bound": plan.bound}
        told = search is not None and (search.step_size or not search.rejected)
        if search is not None and told and self._options.shrinks_trial:
            decay = TrialDecay(*(self._before[f"trial_{name}"] for name in TrialDecay._fields))
            decay = decay.after(self._first_trial(plan.ceiling), search.step_size)
            numbers |= {f"trial_{name}": value for name, value in decay._asdict().items()}
        return numbers

    def average_step(self, ceiling: Number) -> Number:
        """The average under this ceiling; before any search, what a search tries first."""
        if self._is_relative:
            return super().average_step(ceiling)
        average = self._before["average"]
        if is_zero(average):
            average = first_trial(self._options.probe, self._max_step)
        return least(average, ceiling)

    @property
    def _is_relative(self) -> bool:
        return self._rho is not None

    def _first_trial(self, ceiling: Number) -> Number:
        """What a search tries first, unless noise asks for more."""
        if not self._options.shrinks_trial:
            return ceiling
        return first_trial(self._options.probe, ceiling) * self._before["trial_scale"]

    def _mixture(self, beta: Number) -> tuple[Number, Number]:
        """a and b in p_t = -a·g + b·p_{t-1}."""
        return (1.0 + beta, beta * beta) if self._options.nesterov else (1.0, beta)

    def _always(self) -> tuple[Number, Number, Number]:
        """What every step needs: g·g, the momentum, and the bound of the last |p|."""
        return self._g @ self._g, self._beta(), self._before["direction_bound"]

    def _beta(self) -> Number:
        """The momentum to apply: the rule's, bounded and smoothed, or the number given."""
        momentum = self._options.momentum
        if self._h is None or not callable(momentum):
            return momentum
        rule = momentum_of(momentum, self._g, self._h, self._p, self._options.max_momentum)
        found = self._number(rule)
        share = self._options.smoothing
        return share * self._before["beta"] + (1.0 - share) * found if share else found

    def _number(self, value: Number) -> Number:
        """As a float, whatever a rule returns."""
        return float(value)

    def _within_range(self, gg: Number, beta: Number, bound: Number) -> tuple[Number, Number]:
        """The momentum, or 0 if p could then leave the range of its dtype; and a bound of |p|."""
        limit = self.layout.range / 8.0
        length = gg**0.5
        bound = length + beta * bound
        fits = (bound < limit) & (beta < limit)
        return choose(fits, beta, 0.0), choose(fits, bound, length)

    def _geometry(self, *, slope: bool, length: bool) -> Geometry:
        vectors = self._theta, self._f, self._g, self._p
        return measured_geometry(*vectors, self._shares, slope=slope, length=length)

    def _ceiling(self, geometry: Geometry, beta: Number, bound: Number) -> Number:
        """min(α_max, ρ·|θ|/|p|), and what keeps θ in the range of its dtype.

        Decoupled decay must not turn θ around, so 1/decay is a bound too. A θ of zeros has no
        relative length to keep to: there the first trial is the ceiling.
        """
        a, b = self._mixture(beta)
        # 1.0: where p vanishes, any step will do.
        ceiling = least(self._max_step, quotient(self.layout.range / 8.0, 1.0 + a * bound))
        if self._rho is None:
            return ceiling
        decay = max(share.ratio * share.decoupled for share in self._shares)
        if decay:
            ceiling = least(ceiling, 1.0 / decay)
        length = geometry.squared_length(a, b)
        if isinstance(length, float) and not length > 0.0:
            return least(ceiling, FIRST_TRIAL)
        squared = geometry.tt / length
        usable = (squared > 0) & is_finite(squared)
        return least(ceiling, choose(usable, self._rho * squared**0.5, FIRST_TRIAL))

    def _along_new(self, plan: Plan) -> Callable[[Number], Combination]:
        """θ + α·p of the new p, or of r + βp in Nesterov's form."""
        state = self._state
        if not self._options.nesterov:
            return along(self._shares, (state.direction, 1.0))
        residual = self._residual if state.residual is None else Residual(state.residual, 1.0)
        return along(self._shares, residual, (state.direction, plan.beta))
