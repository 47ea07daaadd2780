"""The update of a base optimizer as a direction: how far it went, how far it may go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cgq.engine.direction import Direction, Plan
from cgq.engine.options import SearchOptions
from cgq.rules.scalars import Number, as_tensor
from cgq.rules.trial import clear_trial
from cgq.vectors.layout import Buffer, Layout
from cgq.vectors.line import Combination, Line
from cgq.vectors.process_group import Ranks
from cgq.vectors.products import Dots, Vector, share_all_products
from cgq.vectors.workspace import Workspace

SMALL = 0.02  # entries of θ, in the quadratic mean, that are as good as none


class Displacement(Workspace):
    """d = θ_after - θ_before, as direction, and θ_before, in the scratch vector."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        least = SMALL * math.sqrt(sum(param.numel() for param in layout.params))
        self.least: Number = least if layout.on_host else as_tensor(least, layout.device)
        """Below this |θ| is as good as none."""

    def serves(self, params: Sequence[Tensor]) -> bool:
        """Whether it has a place for exactly these parameters."""
        layout = self.layout
        return layout.ids == list(map(id, params)) and layout.dtypes == [p.dtype for p in params]

    def begin(self) -> None:
        """Keep θ: someone is about to move it."""
        own = self.own_memory()
        if own is None:
            torch._foreach_copy_(self.scratch.views, self.layout.values())
        else:
            torch._foreach_copy_(self.scratch.blocks, own.blocks)

    def end(self) -> None:
        """Note how far it was moved."""
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
        schedule: a factor on ρ.
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
        schedule: float,
        maximize: bool,
        searched: bool,
        options: SearchOptions,
        ranks: Ranks,
        before: Mapping[str, Any],
    ) -> None:
        super().__init__(displacement, options, ranks, before)
        self.sign = -1.0 if maximize else 1.0
        self._rho = schedule * (options.max_relative_step or 0.0)
        self._displacement, self._grads, self._searched = displacement, grads, searched
        layout, dots, like = displacement.layout, Dots(), displacement.scratch.views
        self._d = Vector("d", layout, dots, lambda: displacement.direction.parts)
        self._theta = Vector("θ", layout, dots, lambda: displacement.scratch.parts)
        if searched or not layout.on_host:
            held = self._held = _gathered(grads, displacement, searched)
            g = Vector("g", layout, dots, lambda: held.parts, self.sign)
        else:
            g = Vector("g", layout, dots, lambda: layout.parts(grads, like), self.sign)
        self._f = g
        if unclipped is not None:
            fs = unclipped
            self._f = Vector("f", layout, dots, lambda: layout.parts(fs, like), self.sign)
        self._loss, self._size = self._agreed(self._phi_0(loss), g.length())
        self._nil = 0.0 * self._loss * self._size

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient are; to ask is to wait for an accelerator."""
        return bool(self._nil == 0.0)

    @property
    def is_idle(self) -> bool:
        """Whether no gradient asks for a move; to ask is to wait for an accelerator."""
        return bool(self._size == 0.0)

    def update(self, base_step: Callable[[], object]) -> None:
        """Let the base move the parameters and note how far it went.

        On an accelerator, where the host does not look, zeros replace a non-finite gradient.
        """
        if not self.layout.on_host:
            self._withhold_gradient(self._nil != 0.0)
        base_step()
        self._displacement.end()
        if self._searched or self.layout.on_host:
            self._displacement.undo()

    def plan(self, loss: Tensor | float, error: float) -> Plan:
        """What a search starts from."""
        share_all_products(self._f, self._d, self._theta)
        f_d, *lengths = self._agreed(self._f @ self._d, self._d.length(), self._theta.length())
        ceiling = self._ceiling(*lengths)
        noise = self._noise(self._loss, error)
        trial = clear_trial(ceiling, f_d, noise, ceiling)
        squared = lengths[0] ** 2 if self._options.needs_length else math.nan
        return Plan(self._loss, self._nil, f_d, ceiling, trial, noise=noise, squared_length=squared)

    def unsearched_plan(self, loss: Tensor | float | None) -> Plan:
        """The average step; an update that is not finite counts as such a gradient."""
        share_all_products(self._d, self._theta)
        d, theta = self._agreed(self._d.length(), self._theta.length())
        nil = self._nil * d
        if self.layout.on_host:
            return Plan(self._loss, nil, trial=self.average_step(self._ceiling(d, theta)))
        step = self._part_of_ceiling(self.average_step(1.0), d, theta, nil)
        return Plan(self._loss, nil, trial=step)

    def line(self, plan: Plan) -> Line:
        """The points θ + α·d."""
        point = None if self.layout.on_host else self.layout.empty()
        return Line(self._displacement, self._displacement.along, self._displacement.scratch, point)

    def withhold(self, lost: Tensor) -> None:
        """No update where the batch is `lost`."""
        for d in self._displacement.direction.blocks:
            d.masked_fill_(lost.to(d.device), 0.0)

    def move(self, plan: Plan) -> None:
        """Go α along the update."""
        displacement = self._displacement
        point = displacement.direction  # which is not needed any more
        Line(displacement, displacement.along, displacement.scratch, point).move_to(plan.trial)

    def move_unless(self, lost: Tensor, plan: Plan) -> None:
        """The same on a device, which decides."""
        self.withhold(lost)
        self.move(plan)

    def remember(self, plan: Plan) -> None:
        """The base has taken in the batch already."""

    def _withhold_gradient(self, lost: Tensor) -> None:
        for block in self._held.blocks:
            block.masked_fill_(lost.to(block.device), 0.0)
        if self._held.views[0] is not self._grads[0]:
            torch._foreach_copy_(self._grads, self._held.views)

    def _ceiling(self, d: Number, theta: Number) -> Number:
        """schedule·ρ·|θ|/|d|; 0 where nothing was moved, and no more than the weights' dtype holds.

        |θ| counts as if its entries were at least 0.02 in the mean: weights may begin with zeros.
        """
        if not self.layout.on_host:
            ceiling = self._part_of_ceiling(1.0, d, theta, self._nil)
            return ceiling.nan_to_num_(nan=0.0, posinf=0.0)
        if not d:
            return 0.0
        return min(self._rho * max(theta, self._displacement.least) / d, self.layout.range)

    def _part_of_ceiling(self, share: float, d: Tensor, theta: Tensor, nil: Tensor) -> Tensor:
        """On an accelerator: NaN where `nil` is, infinite or NaN where nothing was moved.

        A norm there sums squares in the weights' dtype, so that what is too small for the range of
        this quotient has no length at all.
        """
        theta = torch.maximum(theta, self._displacement.least)
        return torch.addcdiv(nil, theta, d, value=share * self._rho)


def _gathered(grads: list[Tensor], displacement: Displacement, searched: bool) -> Buffer:
    """The gradient as one vector, a copy only where one is needed.

    A search asks for it once the base has run, which may write to what it is given. Else it lies
    where the update will be noted.
    """
    if searched:
        return displacement.layout.gathered(grads)
    own = displacement.gradients.of(grads)
    if own is None:
        torch._foreach_copy_(displacement.direction.views, grads)
    return displacement.direction if own is None else own
