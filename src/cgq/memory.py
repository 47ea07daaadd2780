"""What the optimizer remembers from step to step: the direction and the residual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cgq.flat import Buffer, Layout
from cgq.joined import Joined
from cgq.scalars import choose
from cgq.shards import sharded_like, take_over

State = MutableMapping[Tensor, dict[str, Any]]


class Residual(NamedTuple):
    """r = -g, the steepest way down from here: `scale` times the tensors, one per parameter."""

    tensors: list[Tensor]
    parts: Callable[[], Iterable[Tensor]]
    scale: float


def renewed(
    memory: Memory | None,
    params: Sequence[Tensor],
    groups: Sequence[int],
    state: State,
    with_residual: bool,
    layout: Callable[[], Layout],
) -> Memory:
    """The memory itself if it serves these parameters, else a new one with its values."""
    if memory is not None:
        if memory.serves(params, groups, state, with_residual):
            return memory
        memory.release(state)
    return Memory(layout(), state, with_residual)


class Vectors:
    """A direction and a scratch vector, each flat: what a step along a line works with."""

    residual: Buffer | None = None
    start: Buffer | None = None
    """θ of before the step, where it is kept and the parameters need not be at it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.direction = layout.zeros()
        self.scratch = layout.zeros()
        self.joined_params, self.joined_grads = Joined(layout), Joined(layout)

    def joined(self) -> Buffer | None:
        """The parameters as one vector in their own memory; None: they are apart."""
        return self.joined_params.of(self.layout.values())

    def remember(self, new: Residual, beta: float) -> None:
        """Take in the residual of a step that was taken."""

    def remember_unless(self, lost: Tensor, beta: float | Tensor) -> None:
        """The same unless the step is `lost`, which the host does not read."""

    def is_gathered(self, residual: Residual) -> bool:
        """Whether the residual lies in the scratch vector, which a search overwrites."""
        return residual.tensors is self.scratch.views

    def residual_at_snapshot(
        self, grads: list[Tensor], sign: float, decays: Sequence[float]
    ) -> Residual:
        """r = -(sign·∇f + decay·θ), made in the scratch vector from the θ it holds."""
        for section in self.layout.sections:
            thetas = section.of(self.scratch.views)
            torch._foreach_mul_(thetas, -decays[section.group])
            torch._foreach_add_(thetas, section.of(grads), alpha=-sign)
        return Residual(self.scratch.views, lambda: self.scratch.parts, 1.0)


class Memory(Vectors):
    """Direction p, residual r of the last step and a scratch vector, each flat.

    p and r are also the per-parameter entries "direction" and "residual" of `state`, as views, so
    that torch saves, loads and shards them like any optimizer's. The scratch vector holds the new
    residual while it must be gathered, and then the snapshot while a line is searched.
    """

    def __init__(self, layout: Layout, state: State, with_residual: bool) -> None:
        super().__init__(layout)
        self.residual = layout.zeros() if with_residual else None
        self.fresh = [param for param in layout.params if not state.get(param)]
        self._entries = {"direction": self._seen_per_parameter(self.direction)}
        if self.residual is not None:
            self._entries["residual"] = self._seen_per_parameter(self.residual)
        for name, entries in self._entries.items():
            for param, entry in zip(layout.params, entries, strict=True):
                if name in state[param]:
                    take_over(entry, state[param][name])
                state[param][name] = entry

    def _seen_per_parameter(self, buffer: Buffer) -> list[Tensor]:
        """The buffer's views, as DTensors where the parameters are."""
        return [sharded_like(*pair) for pair in zip(self.layout.params, buffer.views, strict=True)]

    def serves(
        self, params: Sequence[Tensor], groups: Sequence[int], state: State, with_residual: bool
    ) -> bool:
        """Whether this is the memory of exactly these parameters and still part of `state`."""
        layout = self.layout
        return (
            (self.residual is not None) == with_residual
            and layout.groups == groups
            and layout.ids == list(map(id, params))
            and layout.dtypes == [param.dtype for param in params]
            and all(
                state[param].get("direction") is entry
                for param, entry in zip(params, self._entries["direction"], strict=True)
            )
        )

    def release(self, state: State) -> None:
        """Leave `state` with tensors of its own, so that the flat buffers can go."""
        for name, entries in self._entries.items():
            for param, entry in zip(self.layout.params, entries, strict=True):
                if state.get(param, {}).get(name) is entry:
                    state[param][name] = entry.clone()

    def forget_fresh(self, state: State) -> None:
        """A step that failed or was skipped leaves no state where there was none."""
        for param in self.fresh:
            state.pop(param, None)

    def is_first_and_idle(self, grads: list[Tensor]) -> bool:
        """Whether nothing is remembered of any parameter, and no gradient asks for a move."""
        all_fresh = len(self.fresh) == len(self.layout.params)
        return all_fresh and not any(bool(grad.any()) for grad in grads)

    def new_residual(self, grads: list[Tensor], sign: float, decays: Sequence[float]) -> Residual:
        """r = -(sign·∇f + decay·θ), with one decay per group."""
        layout = self.layout
        if layout.on_host and not any(decays):  # then a gathered copy would gain nothing
            parts = list(layout.parts(grads, self.scratch.views))
            return Residual(grads, lambda: parts, -sign)
        if layout.on_host:
            torch._foreach_copy_(self.scratch.views, layout.values())
            return self.residual_at_snapshot(grads, sign, decays)
        self._gather_residual(grads, sign)
        values = layout.values() if any(decays) else []
        for section in layout.sections:
            if decay := decays[section.group]:
                residuals = section.of(self.scratch.views)
                torch._foreach_add_(residuals, section.of(values), alpha=-decay)
        return Residual(self.scratch.views, lambda: self.scratch.parts, 1.0)

    def _gather_residual(self, grads: list[Tensor], sign: float) -> None:
        sources = self.joined_grads.of(grads)
        if sources is None:
            torch._foreach_copy_(self.scratch.views, grads)
        blocks = self.scratch.blocks
        for r, g in zip(blocks, blocks if sources is None else sources.blocks, strict=True):
            torch.mul(g, -sign, out=r)

    def remember(self, new: Residual, beta: float) -> None:
        """p ← r + βp and the residual ← r."""
        if self.residual is None:
            for p, r in zip(self.direction.parts, new.parts(), strict=True):
                p.mul_(beta).add_(r, alpha=new.scale)
            return
        for h, r in zip(self.residual.parts, new.parts(), strict=True):
            torch.mul(r, new.scale, out=h)
        for p, h in zip(self.direction.blocks, self.residual.blocks, strict=True):
            torch.add(h, p, alpha=beta, out=p)

    def remember_unless(self, lost: Tensor, beta: float | Tensor) -> None:
        """As `remember` for a gathered residual, unless the step is `lost`.

        Neither `lost` nor `beta` is read by the host. What is left out may be NaN: hence `where`
        and not a factor of zero, but for what was kept and is finite.
        """
        factor = choose(lost, 1.0, beta)
        residuals = self.direction if self.residual is None else self.residual
        for p, h, r in zip(
            self.direction.blocks, residuals.blocks, self.scratch.blocks, strict=True
        ):
            left_out = lost.to(p.device)
            if h is p:
                p.mul_(factor.to(p)).add_(r.masked_fill_(left_out, 0.0))
            else:
                torch.where(left_out, h, r, out=h)
                p.mul_(factor.to(p)).addcmul_(h, (~left_out).to(p))
