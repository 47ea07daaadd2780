"""The conjugate direction on an accelerator: nothing is read that the host would wait for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import Tensor

from cgq.engine.conjugate import Conjugate
from cgq.engine.device_direction import DeviceDirection, clear
from cgq.engine.direction import Plan
from cgq.engine.geometry import along
from cgq.engine.state import Residual
from cgq.rules.scalars import Number, choose
from cgq.vectors import one_pass
from cgq.vectors.device_line import DeviceLine
from cgq.vectors.layout import Buffer
from cgq.vectors.line import Combination
from cgq.vectors.products import Dots, Vector


class DeviceConjugate(DeviceDirection, Conjugate):
    """The conjugate direction, with the residual gathered in the scratch vector."""

    @cached_property
    def _gathered(self) -> Buffer:
        """The gradients as one vector, in the scratch vector unless they lie side by side."""
        scratch, gathered = self._state.scratch, self._state.gradients.whole(self._grads)
        if gathered is None:
            torch._foreach_copy_(scratch.views, self._grads)
        return gathered or scratch

    def _new_residual(self) -> Residual:
        """In the scratch vector: the gradients' own memory must not be cleared."""
        state, layout, blocks = self._state, self.layout, self._gathered.blocks
        if [*map(Tensor.data_ptr, blocks)] != [*map(Tensor.data_ptr, state.scratch.blocks)]:
            torch._foreach_copy_(state.scratch.blocks, blocks)
        values = layout.values()
        for group, members in layout.sections:
            if decay := self.sign * self._decays[group]:
                residuals = [state.scratch.views[index] for index in members]
                torch._foreach_add_(residuals, [values[index] for index in members], alpha=decay)
        return self._in_scratch

    @property
    def _in_scratch(self) -> Residual:
        return Residual(self._state.scratch, -self.sign)

    def _theta_parts(self) -> Callable[[], Any]:
        state, snapshot = self._state, cache(self._state.copied_parameters)
        self._snapshot = snapshot
        return lambda: (state.own_memory() or snapshot()).parts

    def _loss_gradient(self, unclipped: list[Tensor] | None, dots: Dots) -> Vector | None:
        """In a vector of its own: sums are taken in one order only where all lie alike."""
        if unclipped is None:
            return None
        gathered = cache(partial(self.layout.gathered, unclipped))
        return self._named("f", dots, lambda: gathered().parts, self.sign)

    def line(self, plan: Plan) -> DeviceLine:
        """The points θ + α·(a·r + b·p)."""
        return self._line_from(self._snapshot(), plan)

    def _line_from(self, start: Buffer, plan: Plan, point: Buffer | None = None) -> DeviceLine:
        state, shares, mixture = self._state, self._shares, self._mixture
        scratch, scale = self._in_scratch

        def at(alpha: Number) -> Combination:  # all of it anew: a recording may begin here
            a, b = mixture(plan.beta)
            return along(shares, (scratch, scale * a), (state.direction, b))(alpha)

        return DeviceLine(state, at, start, point)

    def move(self, plan: Plan) -> None:
        self._state.remember(self._residual, plan.beta, self._squares)
        self._move_along_new(plan)

    def move_unless(self, lost: Number, plan: Plan) -> None:
        self._state.squares = None  # nobody here knows whose they are
        if one_pass.serves(self.layout):
            self._move_at_once(lost, plan)
        else:
            self._remember_unless(lost, plan)
            self._move_along_new(plan)

    def _move_at_once(self, lost: Number, plan: Plan) -> None:
        """All of it with one kernel; parameters that are apart are moved by one more."""
        state, values, (residual, scale) = self._state, self.layout.values(), self._in_scratch
        mixed = (residual, 1.0), (state.direction, plan.beta)  # in Nesterov's form
        new = mixed if self._options.nesterov else ((state.direction, 1.0),)
        kept, terms = along(self._shares, *new)(plan.trial)
        *from_r, from_p = [factors for _, factors in terms]
        own = start = state.own_memory()
        if own is None and not all(isinstance(each, float) for each in kept):  # they decay
            start = state.spare
            torch._foreach_copy_(start.views, values)
        for index, span in enumerate(self.layout.spans):
            group = span.group
            one_pass.remember_and_move(
                state.direction.parts[index],
                None if state.residual is None else state.residual.parts[index],
                residual.parts[index],
                scale,
                plan.beta,
                lost,
                out=(start or residual).parts[index],
                theta=None if start is None else start.parts[index],
                kept=None if isinstance(kept[group], float) else kept[group],  # else 1.0
                from_r=from_r[0][group] if from_r else None,
                from_p=from_p[group],
            )
        if start is None:
            clear(self.layout, residual, lost)  # which was left as it is
            torch._foreach_add_(values, residual.views)
        elif own is None:
            torch._foreach_copy_(values, start.views)

    def _remember_unless(self, lost: Number, plan: Plan) -> None:
        """What is skipped may be NaN: hence `where`; a zero factor is for what is kept only."""
        state, scale = self._state, self._in_scratch.scale
        if scale != 1.0:
            torch._foreach_mul_(state.scratch.blocks, scale)
            self._residual = Residual(state.scratch, 1.0)
        factor = choose(lost, 1.0, plan.beta)
        residuals = state.direction if state.residual is None else state.residual
        for p, h, r in zip(
            state.direction.blocks, residuals.blocks, state.scratch.blocks, strict=True
        ):
            left_out = lost.to(p.device)
            if h is p:
                p.mul_(factor.to(p)).add_(r.masked_fill_(left_out, 0.0))
            else:
                torch.where(left_out, h, r, out=h)
                p.mul_(factor.to(p)).addcmul_(h, (~left_out).to(p))

    def _move_along_new(self, plan: Plan) -> None:
        """The scratch vector is free by now, unless Nesterov's form asks for r itself."""
        state = self._state
        is_free = state.residual is not None or not self._options.nesterov
        point = state.scratch if is_free else None
        DeviceLine(state, self._along_new(plan), point=point).move_to(plan.trial)

    def remember(self, plan: Plan) -> None:
        self._state.remember(self._residual, plan.beta, self._squares)

    def withhold(self, lost: Number) -> None:
        clear(self.layout, self._state.scratch, lost)

    def _number(self, value: Number) -> Number:
        return value
