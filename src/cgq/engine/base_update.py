"""The update of a base optimizer as a direction: how far it went, how far it may go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cgq.engine.base_recordings import BaseRecordings
from cgq.engine.direction import Direction, Plan
from cgq.engine.options import SearchOptions
from cgq.evaluation.copies import Copier
from cgq.rules.first_trial import clear_trial
from cgq.rules.scalars import Number, as_tensor
from cgq.vectors.layout import Layout
from cgq.vectors.line import Combination, Line, combine
from cgq.vectors.process_group import Ranks
from cgq.vectors.products import Dots, Vector, share_ahead
from cgq.vectors.recording import Recording
from cgq.vectors.workspace import Workspace

SMALL = 0.02  # entries of θ, in the quadratic mean, that are as good as none


class Displacement(Workspace):
    """d = θ_after - θ_before, as direction, and θ_before, in the scratch vector."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.least = SMALL * math.sqrt(layout.weights)
        """Below this |θ| is as good as none."""
        self.beginning, self.ending = Recording(self.recorder), Recording(self.recorder)
        """The step that is not searched, before the base moves and after."""
        self.of_base = BaseRecordings(self.recorder)
        self.opening = Recording(self.recorder)
        """The step that is searched, before the base moves."""
        self.copier = Copier()
        """Of the base's state."""
        self.holds_last_step = False
        """Whether θ is where the last step led from what is kept."""

    @cached_property
    def least_on_device(self) -> Tensor:
        return as_tensor(self.least, self.layout.device)

    def serves(self, params: Sequence[Tensor]) -> bool:
        """Whether it has a place for exactly these parameters."""
        layout = self.layout
        return layout.ids == list(map(id, params)) and layout.dtypes == [p.dtype for p in params]

    def begin(self) -> None:
        """Keep θ: someone is about to move it."""
        self.holds_last_step = True
        own = self.own_memory()
        if own is None:
            torch._foreach_copy_(self.scratch.views, self.layout.values())
        else:
            torch._foreach_copy_(self.scratch.blocks, own.blocks)

    def end(self) -> None:
        """Note how far it was moved."""
        if self.layout.on_host:
            vectors = self.direction.views, self.layout.values(), self.scratch.views
            for d, after, before in zip(*vectors, strict=True):
                torch.sub(after, before, out=d)
            return
        own = self.own_memory()
        if own is None:
            torch._foreach_copy_(self.direction.views, self.layout.values())
        moved = self.direction if own is None else own
        for d, after, before in zip(
            self.direction.blocks, moved.blocks, self.scratch.blocks, strict=True
        ):
            torch.sub(after, before, out=d)

    def undo(self) -> None:
        """Put θ back."""
        torch._foreach_copy_(self.layout.values(), self.scratch.views)

    def along(self, alpha: Number) -> Combination:
        """θ + α·d."""
        return Combination([1.0], [(self.direction, [alpha])])


class BaseUpdate(Direction):
    """The update that a base optimizer makes of a batch's gradient.

    Args:
        displacement: where the update is noted, once it is made.
        grads: what it is made of, one per parameter.
        unclipped: the gradients of the loss, where `grads` are not.
        loss: at the old point, if known.
        rho: the longest step, relative to the weights.
        maximize: whether the base climbs.
        searched: whether the slope will be asked for.
    """

    def __init__(
        self,
        displacement: Displacement,
        grads: list[Tensor],
        unclipped: list[Tensor] | None,
        loss: Tensor | float | None,
        *,
        rho: Number,
        maximize: bool,
        searched: bool,
        options: SearchOptions,
        ranks: Ranks | None,
        before: Mapping[str, Any],
    ) -> None:
        super().__init__(displacement, options, ranks, before)
        self.sign = -1.0 if maximize else 1.0
        self._rho = rho
        self._displacement, self._grads, self._searched = displacement, grads, searched
        self._dots: Dots = {}
        self._d = self._named("d", self._dots, lambda: displacement.direction.parts)
        self._theta = self._named("θ", self._dots, lambda: displacement.scratch.parts)
        self._g = self._f = self._named("g", self._dots, self._gradient_parts(), self.sign)
        if unclipped is not None:
            layout, fs, like = self.layout, unclipped, displacement.scratch.views
            self._f = self._named("f", self._dots, lambda: layout.parts(fs, like), self.sign)
        self._measure(loss)

    def _measure(self, loss: Tensor | float | None) -> None:
        """Measure the gradient, and how well it agrees with the last step."""
        g, s = self._g, None
        if self._searched and self._options.is_guarded:
            s = self._last_step()
        pairs = [(g, g)] if s is None else [(g, g), (g, s), (s, s)]
        # NaN where the last step is not known: all ranks have to send as many numbers.
        known = 0.0 if self._displacement.holds_last_step else math.nan
        phi_0, known = share_ahead(pairs, [self._phi_0(loss), known])
        last = [] if s is None else [g @ s, s.length()]
        if isinstance(known, Tensor) or known != 0.0:
            last = [number + known for number in last]
        self._loss, self._size, *last = self._agreed(phi_0, g.length(), *last)
        self._nil = 0.0 * self._loss * self._size
        self._agreement: Number = agreement(last[0], last[1], self._size) if last else math.nan

    def _last_step(self) -> Vector:
        """The last step, if it is known, noted where this one will be."""
        displacement = self._displacement
        if displacement.holds_last_step:
            displacement.end()
        return self._named("s", self._dots, lambda: displacement.direction.parts)

    def _gradient_parts(self) -> Callable[[], Any]:
        """A search asks for it once the base has run, which may write to what it is given."""
        layout, grads, like = self.layout, self._grads, self._displacement.scratch.views
        if not self._searched:
            return lambda: layout.parts(grads, like)
        copied = self._displacement.spare
        torch._foreach_copy_(copied.views, grads)
        return lambda: copied.parts

    @property
    def is_lost(self) -> bool:
        """Whether loss or gradient is known to be non-finite."""
        return bool(self._nil != 0.0)

    @property
    def is_idle(self) -> bool:
        """Whether no gradient asks for a move; to ask is to wait for an accelerator."""
        return bool(self._size == 0.0)

    def begin(self) -> None:
        """Keep θ: the base is about to move it."""
        self._displacement.begin()

    def update(self, base_step: Callable[[], object]) -> None:
        """Let the base move the parameters, and note how far it went."""
        base_step()
        self._displacement.end()

    def plan(self, loss: Tensor | float, error: float) -> Plan:
        """What a search starts from."""
        (off,) = share_ahead(
            [
                (self._f, self._d),
                (self._f, self._f),
                (self._d, self._d),
                (self._theta, self._theta),
            ],
            [self._error(error)],
        )
        off, f_d, f, d, theta = self._agreed(
            off, self._f @ self._d, self._f.length(), self._d.length(), self._theta.length()
        )
        ceiling = self._ceiling(d, theta)
        noise = off * abs(self._loss)
        trial = clear_trial(ceiling, f_d, noise, ceiling)
        squared = d**2 if self._options.needs_length else math.nan
        return Plan(
            self._loss,
            self._nil,
            f_d,
            ceiling,
            trial,
            noise=noise,
            agreement=self._agreement,
            own_agreement=agreement(f_d, d, f),
            squared_length=squared,
        )

    def average_plan(self, loss: Tensor | float | None) -> Plan:
        """The average step; an update that is not finite counts as such a gradient."""
        share_ahead([(self._d, self._d), (self._theta, self._theta)])
        d, theta = self._agreed(self._d.length(), self._theta.length())
        step = self.average_step(self._ceiling(d, theta))
        return Plan(self._loss, self._nil * d, trial=step)

    def line(self, plan: Plan) -> Line:
        """The points θ + α·d."""
        displacement = self._displacement
        return Line(self.layout, displacement.along, displacement.scratch, starts_at_snapshot=False)

    def move(self, plan: Plan) -> None:
        """Go α along the update."""
        displacement = self._displacement
        combine(self.layout, displacement.along(plan.trial), displacement.scratch)

    def remember(self, plan: Plan) -> None:
        """The base has done so."""

    def _ceiling(self, d: Number, theta: Number) -> Number:
        """ρ·|θ|/|d|; 0 where nothing was moved, and no more than the weights' dtype holds.

        |θ| counts as if its entries were at least 0.02 in the mean: weights may begin with zeros.
        """
        if not d:
            return 0.0
        return min(self._rho * max(theta, self._displacement.least) / d, self.layout.range)


def agreement(g_s: Number, s: Number, g: Number) -> Number:
    """-g·s/(|g||s|): the cosine between a step and the descent that a batch asks for.

    >>> agreement(-3.0, 2.0, 3.0)
    0.5
    """
    # Not known, or no step; in this order a device is not waited for.
    if isinstance(s, float) and (not s > 0.0 or not g > 0.0):
        return math.nan
    return -g_s / (g * s)
