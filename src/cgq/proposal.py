"""Another optimizer's update as a line: how far it went, where it points, how far it may go."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cgq.flat import Buffer, Layout
from cgq.foresight import Plan
from cgq.ground import Drift, Ground, Snapshot
from cgq.memory import Residual, Vectors
from cgq.options import Options
from cgq.policy import clear_trial
from cgq.progress import Progress
from cgq.ranks import Ranks
from cgq.scalars import Number, as_tensor, nil
from cgq.vector import Vector

SMALL = 0.02  # entries of θ, in the quadratic mean, that are as good as none


class Displacement(Vectors):
    """d = θ_after - θ_before, as direction, and θ_before, in the scratch vector."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.start = self.scratch
        least = SMALL * math.sqrt(sum(param.numel() for param in layout.params))
        self.least: Number = least if layout.on_host else as_tensor(least, layout.device)
        """Below this |θ| is as good as none."""

    def serves(self, params: Sequence[Tensor]) -> bool:
        """Whether it has a place for exactly these parameters."""
        layout = self.layout
        return layout.ids == list(map(id, params)) and layout.dtypes == [p.dtype for p in params]

    def begin(self) -> None:
        """Keep θ: someone is about to move it."""
        joined = self.joined()
        if joined is None:
            torch._foreach_copy_(self.scratch.views, self.layout.values())
        else:
            torch._foreach_copy_(self.scratch.blocks, joined.blocks)

    def end(self) -> None:
        """Note how far it was moved."""
        joined = self.joined()
        if joined is None:
            torch._foreach_copy_(self.direction.views, self.layout.values())
        moved = self.direction if joined is None else joined
        for d, after, before in zip(
            self.direction.blocks, moved.blocks, self.scratch.blocks, strict=True
        ):
            torch.sub(after, before, out=d)

    def undo(self) -> None:
        """Put θ back."""
        torch._foreach_copy_(self.layout.values(), self.scratch.views)

    def remember_unless(self, lost: Tensor, beta: float | Tensor) -> None:
        """Nothing is remembered; where the step is `lost` there is no way to go."""
        for d in self.direction.blocks:
            d.masked_fill_(lost.to(d.device), 0.0)


class Proposal(Ground):
    """The update that another optimizer makes of a batch's gradient.

    Args:
        memory: where the update is noted, once it is made.
        grads: what it is made of, one per parameter.
        unclipped: the gradients of the loss, where `grads` are not.
        loss: at the old point, if known.
        schedule: a factor on ρ.
        maximize: whether the other optimizer climbs.
        searched: whether the slope will be asked for.
    """

    def __init__(
        self,
        memory: Displacement,
        grads: list[Tensor],
        unclipped: list[Tensor] | None,
        loss: Tensor | float | None,
        *,
        schedule: float,
        maximize: bool,
        searched: bool,
        options: Options,
        ranks: Ranks,
        progress: Progress,
    ) -> None:
        super().__init__(memory, options, ranks, progress, max_step=1.0)
        self.sign = -1.0 if maximize else 1.0
        self._schedule, self._rho = schedule, options.max_relative_step or 0.0
        self._grads = grads
        layout = memory.layout
        self._least = memory.least
        self.decays = [0.0]
        self.residual = Residual(grads, lambda: [], -self.sign)
        self.snapshot = Snapshot(memory)
        self.snapshot.buffer = memory.scratch
        self._d = Vector(layout, lambda: memory.direction.parts)
        self._theta = Vector(layout, lambda: memory.scratch.parts)
        if searched or not layout.on_host:
            held = self._held = _held(grads, memory, searched)
            g = Vector(layout, lambda: held.parts, self.sign)  # not self: see Snapshot
        else:
            g = _as_it_lies(layout, grads, memory, self.sign)
        self._f = g if unclipped is None else _as_it_lies(layout, unclipped, memory, self.sign)
        self._phi_0, self._size = self._agreed(self._value(loss), g.length())
        self._nil = nil(self._phi_0) * self._size

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient are; to ask is to wait for an accelerator."""
        return bool(self._nil == 0.0)

    @property
    def is_idle(self) -> bool:
        """Whether no gradient asks for a move; to ask is to wait for an accelerator."""
        return bool(self._size == 0.0)

    def withhold_unless_finite(self) -> None:
        """Zeros for a gradient that is not finite, without the host looking at it."""
        lost = self._nil != 0.0
        for block in self._held.blocks:
            block.masked_fill_(lost.to(block.device), 0.0)
        if self._held.views[0] is not self._grads[0]:
            torch._foreach_copy_(self._grads, self._held.views)

    def plan(self, loss: Tensor | float, error: float) -> Plan:
        """What a search starts from."""
        f_d, *lengths = self._agreed(self._f @ self._d, self._d.length(), self._theta.length())
        ceiling = self._ceiling(*lengths)
        noise = self._noise(self._phi_0, error)
        trial = clear_trial(self.first_trial(ceiling), f_d, noise, ceiling)
        return Plan(self._phi_0, self._size, f_d, ceiling, trial, 0.0, 0.0, noise)

    def drift(self, loss: Tensor | float | None) -> Drift:
        """The average step; an update that is not finite counts as such a gradient."""
        d, theta = self._agreed(self._d.length(), self._theta.length())
        zero = self._nil * d
        if self._layout.on_host:
            alpha = self.average_step(self._ceiling(d, theta))
        else:
            alpha = self._part_of_ceiling(self._share, d, theta, zero)
        return Drift(self._phi_0, zero, alpha, 0.0, 0.0)

    def mixture(self, beta: Number) -> tuple[Number, Number]:
        """The line runs along what was noted, and along nothing else."""
        return 0.0, 1.0

    def _ceiling(self, d: Number, theta: Number) -> Number:
        """schedule·ρ·|θ|/|d|; 0 where nothing was moved, and no more than the weights' dtype holds.

        |θ| counts as if its entries were at least 0.02 in the mean: weights may begin with zeros.
        """
        if not self._layout.on_host:
            ceiling = self._part_of_ceiling(1.0, d, theta, self._nil)
            return ceiling.nan_to_num_(nan=0.0, posinf=0.0)
        if not d:
            return 0.0
        ceiling = self._schedule * self._rho * max(theta, self._least) / d
        return min(ceiling, self._layout.range)

    def _part_of_ceiling(self, share: float, d: Tensor, theta: Tensor, zero: Tensor) -> Tensor:
        """On an accelerator: NaN where `zero` is, infinite or NaN where nothing was moved.

        A norm there sums squares in the weights' dtype, so that what is too small for the range of
        this quotient has no length at all.
        """
        factor = share * self._schedule * self._rho
        return torch.addcdiv(zero, torch.maximum(theta, self._least), d, value=factor)


def _held(grads: list[Tensor], memory: Displacement, searched: bool) -> Buffer:
    """The gradient as one vector, a copy only where one is needed.

    A search asks for it once the other optimizer has run, which may write to what it is given.
    Else it lies where the update will be noted.
    """
    if searched:
        return memory.layout.gathered(grads)
    joined = memory.joined_grads.of(grads)
    if joined is None:
        torch._foreach_copy_(memory.direction.views, grads)
    return memory.direction if joined is None else joined


def _as_it_lies(
    layout: Layout, tensors: list[Tensor], memory: Displacement, scale: float
) -> Vector:
    return Vector(layout, lambda: layout.parts(tensors, memory.scratch.views), scale)
