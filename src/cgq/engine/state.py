"""What CGQ remembers from step to step: direction, residual, and numbers in the groups."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cgq.engine.direction import Outcome
from cgq.rules.capped import Capped
from cgq.rules.scalars import times
from cgq.vectors.layout import Buffer, Layout, cut
from cgq.vectors.recording import Recording
from cgq.vectors.sharding import sharded_like, take_over
from cgq.vectors.workspace import Workspace

State = MutableMapping[Tensor, dict[str, Any]]
Groups = list[dict[str, Any]]

# In the parameter groups: the one place that state_dict, pickle and distributed checkpoints all
# keep. The same in every group, but for step_size.
NUMBERS: dict[str, float | int] = {
    "step_size": 0.0,
    "first_lr": 0.0,
    "beta": 0.0,
    "average": 0.0,  # of found steps, or of their shares of the ceiling; 0.0: none yet
    "direction_bound": 0.0,  # at least |p|, for numbers that could leave the range of their dtype
    "steps": 0,
    "skipped": 0,
    "rejected_fits": 0,
    **Capped()._asdict(),
    "start_checks": 0,  # whether φ(0) was measured again, to see if the closure repeats itself
    "trial_scale": 1.0,
    "trial_total": 0.0,
    "trial_searches": 0,
}


ALIGNED = 64  # bytes, from which on all vectors are summed alike
RENAMED = {"reach": "direction_bound"}  # in states of older versions


def complete(groups: Groups, numbers: Mapping[str, float | int]) -> None:
    """Give groups that were saved before a number existed, or had its name, what they lack."""
    for group in groups:
        for old, new in RENAMED.items():
            if old in group and new in numbers:
                group[new] = group.pop(old)
        group.update({**numbers, **group})


def read(group: dict[str, Any], names: Iterable[str]) -> dict[str, float | int]:
    """These numbers of `group`, read off the device where one was left there."""
    values = {name: group[name] for name in names}
    return {
        name: value.item() if isinstance(value, Tensor) else value for name, value in values.items()
    }


@contextmanager
def read_for_a_while(groups: Groups, names: Collection[str]) -> Iterator[None]:
    """Groups hold these as numbers within the block, and after it what they held before."""
    held = [{name: group[name] for name in names} for group in groups]
    for group in groups:
        group.update(read(group, names))
    try:
        yield
    finally:
        for group, numbers in zip(groups, held, strict=True):
            group.update(numbers)


def count_skipped(groups: Groups, skipped: bool | Tensor = True) -> None:
    """Count a skipped step; a tensor where the host has not looked."""
    for group in groups:
        group["skipped"] = group["skipped"] + skipped


def record(outcome: Outcome, groups: Groups, ratios: Sequence[float], counts: bool) -> None:
    """Write down what came of a step, of which each group took its ratio.

    `counts`: the host knows which steps were skipped; where it does not they count as steps.
    """
    if outcome.skipped is not False:
        count_skipped(groups, outcome.skipped)
    for ratio, group in zip(ratios, groups, strict=True):
        if outcome.search is not None:
            group["rejected_fits"] += outcome.search.rejected
            if not (outcome.search.rejected or outcome.skipped):  # which tell nothing
                group.update(Capped.of(group).after(outcome.capped)._asdict())
        group["steps"] += not (outcome.skipped is True and counts)
        group.update(outcome.numbers)
        if outcome.numbers:
            group["step_size"] = times(ratio, outcome.numbers["step_size"])


class Residual(NamedTuple):
    """r = -g, the steepest way down from here: `scale` times the vector."""

    vector: Buffer
    scale: float


def renewed(
    old: DirectionState | None,
    params: Sequence[Tensor],
    groups: Sequence[int],
    state: State,
    with_residual: bool,
    layout: Callable[[], Layout],
) -> DirectionState:
    """The old one if it serves these parameters, else a new one with its values."""
    if old is not None:
        if old.serves(params, groups, state, with_residual):
            return old
        old.release(state)
    return DirectionState(layout(), state, with_residual)


class DirectionState(Workspace):
    """Direction p, residual r of the last step and a scratch vector, each flat.

    p and r are also the per-parameter entries "direction" and "residual" of `state`, as views, so
    that torch saves, loads and shards them like any optimizer's. The scratch vector holds the new
    residual while it must be gathered, and then the snapshot while a line is searched.
    """

    def __init__(self, layout: Layout, state: State, with_residual: bool) -> None:
        super().__init__(layout)
        self.residual = layout.zeros() if with_residual else None
        self.fresh = [param for param in layout.params if not state.get(param)]
        self.squares: list[Any] | None = None
        """h·h, as it was computed of g; None: it is not known."""
        self.unsearched = Recording(self.recorder)
        """The step that is not searched, from the gathered gradient on."""
        self.wanted: dict[str, set[tuple[str, str]]] = {}
        """Which inner products a plan asked for the last time."""
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
        """Whether this belongs to exactly these parameters and still part of `state`."""
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

    def residual_at(
        self, thetas: list[Tensor], grads: list[Tensor], sign: float, decays: Sequence[float]
    ) -> Residual:
        """r = -(sign·∇f + decay·θ), with one decay per group, in the scratch vector."""
        if thetas is not self.scratch.views:
            torch._foreach_copy_(self.scratch.views, thetas)
        for group, members in self.layout.sections:
            residuals = [self.scratch.views[index] for index in members]
            torch._foreach_mul_(residuals, -decays[group])
            torch._foreach_add_(residuals, [grads[index] for index in members], alpha=-sign)
        return Residual(self.scratch, 1.0)

    def remember(
        self,
        new: Residual,
        beta: float,
        squares: list[Any] | None,
        then: Callable[[int, slice], None] | None = None,
    ) -> None:
        """p ← r + βp and the residual ← r, whose square is known.

        `then` is told what is done of each span: what was just written is still in the cache. The
        last span comes first: the inner products, which were made before, have read it last.
        """
        alike = True
        for span, elements in self.layout.pieces():
            p, r = cut(self.direction.parts[span], elements), cut(new.vector.parts[span], elements)
            if self.residual is None:
                p.mul_(beta).add_(r, alpha=new.scale)
            else:
                h = torch.mul(r, new.scale, out=cut(self.residual.parts[span], elements))
                torch.add(h, p, alpha=beta, out=p)
                alike = alike and h.data_ptr() % ALIGNED == r.data_ptr() % ALIGNED
            if then is not None:
                then(span, elements)
        # Elsewhere in a cache line a sum is made in another order: a run that goes on from a
        # checkpoint, where h·h has to be computed, would have other bits. And of shards all ranks
        # have to know it, or none: they send as many numbers.
        known = alike and self.residual is not None and self.layout.reduce is None
        self.squares = squares if known else None
