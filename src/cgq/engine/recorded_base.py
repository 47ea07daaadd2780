"""A base whose own kernels may be recorded too: all of an unsearched step is then one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as of_torch

from cgq.engine.base_update import Displacement
from cgq.engine.device_base_update import DeviceBaseUpdate
from cgq.engine.direction import Outcome
from cgq.engine.options import SearchOptions
from cgq.engine.rollback import Rollback
from cgq.evaluation.copies import Copier
from cgq.evaluation.snapshots import Snapshot
from cgq.rules import scalars
from cgq.rules.base_rate import at_lifted_rates
from cgq.rules.scalars import Number, is_zero
from cgq.vectors.recording import Recording

PLAIN = bool, int, float, str, type(None)  # what a key can hold by value


class Fixed(NamedTuple):
    """What a recording of a base's step takes to stay as it is."""

    key: list[object]
    tensors: list[Tensor]
    """All of its state."""

    @classmethod
    def of(cls, base: Optimizer) -> Fixed | None:
        """That of this base; None: its step cannot be recorded.

        It can be of a base of torch's own that says so by `capturable=True`, and of torch's SGD,
        which counts no steps, unless somebody's hooks want to be called in each.

        >>> base = SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        >>> Fixed.of(base).key[:2]
        [0.1, 0]
        """
        if not _says_it_can(base) or _wants_to_be_called(base):
            return None
        values = [group.get(name) for group in base.param_groups for name in base.defaults]
        state: list[Any] = []
        for entry in base.state.values():
            if not isinstance(entry, dict):
                return None
            state += entry.values()
        tensors = [value for value in state if isinstance(value, Tensor)]
        are_there = len(tensors) == len(state)
        if not are_there or any(scalars.is_host(tensor.device) for tensor in tensors):
            return None
        if not all(map(_is_plain, values)):
            return None
        return cls([*values, *map(Tensor.data_ptr, tensors)], tensors)


def _says_it_can(base: Optimizer) -> bool:
    """Whether it is torch's own: who wraps or inherits from one may do more in Python."""
    if not type(base).__module__.startswith("torch.optim."):
        return False
    return type(base) is SGD or all(group.get("capturable") for group in base.param_groups)


def _wants_to_be_called(base: Optimizer) -> bool:
    """Whether somebody has put something of his around its step."""
    return bool(
        "step" in vars(base)
        or base._optimizer_step_pre_hooks
        or base._optimizer_step_post_hooks
        or of_torch._global_optimizer_pre_hooks
        or of_torch._global_optimizer_post_hooks
    )


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, PLAIN)


class _Whole(DeviceBaseUpdate):
    """An update that is recorded as a whole, so that none of its parts is."""

    _may_record = False

    def average_step(self, ceiling: Number) -> Number:
        return ceiling  # of which the share was taken already


class RecordedBase:
    """A base, for one step, and how that and what is around it are launched at once."""

    def __init__(
        self,
        base: Optimizer,
        displacement: Displacement,
        fixed: Fixed,
        grads: list[Tensor],
        groups: Sequence[int],
    ) -> None:
        self._base, self._displacement, self._fixed, self._grads = base, displacement, fixed, grads
        self._recordings = displacement.of_base
        displacement.own_memory()  # which finds out where they are
        displacement.gradients.of(grads)
        self._lift = base.param_groups[0]["lift"]
        places = displacement.parameters.places, displacement.gradients.places
        self._key = *places, groups, fixed.key, self._lift

    @classmethod
    def of(
        cls, base: Optimizer, displacement: Displacement, groups: Sequence[int]
    ) -> RecordedBase | None:
        """This base; None: it launches its kernels by itself, one by one.

        `groups` are the numbers of those that the parameters with gradients are in. What moves in
        each step, as gradients mostly do, or a scheduled rate, is seen at little cost.
        """
        recordings = displacement.of_base
        if not recordings.is_possible or not _says_it_can(base):
            return None
        grads = displacement.layout.gradients()
        ends = grads[0].data_ptr(), grads[-1].data_ptr()
        if not recordings.comes_again((*ends, base.param_groups[0].get("lr"))):
            return None
        fixed = Fixed.of(base)
        if fixed is None:
            recordings.forget()
            return None
        return cls(base, displacement, fixed, grads, groups)

    def unsearched_step(
        self, loss: Tensor | float | None, rho: float, options: SearchOptions, rollback: Rollback
    ) -> Outcome | None:
        """All of a step that is not searched as one recording; None: nothing was done."""
        displacement, recording = self._displacement, self._recordings.whole
        if not rho:  # which may ask whether the gradient is zero too
            return None
        groups, holds = self._base.param_groups, displacement.holds_last_step
        first = groups[0]
        share = rho * (1.0 if is_zero(first["average"]) else first["average"])

        def work(now: Mapping[str, Tensor]) -> dict[str, Number]:
            update = _Whole(
                displacement,
                self._grads,
                None,
                now.get("loss"),
                rho=now["share"],
                maximize=bool(first.get("maximize")),
                searched=False,
                options=options,
                ranks=None,
                before=first,
            )
            update.begin()
            if recording.is_possible:  # it is done, not captured: then there is nothing to undo
                rollback.callback(displacement.undo)
            with at_lifted_rates(groups, self._lift):
                update.update(self._base.step)
            step = update.unsearched_step(now.get("loss"))
            seen: dict[str, Any] = {} if step.loss is None else {"loss seen": step.loss}
            return {**step.numbers, **seen, "lost": step.skipped}

        numbers: dict[str, Number] = {"share": share} | ({} if loss is None else {"loss": loss})
        if not recording.done((self._key, options), numbers, work):
            displacement.holds_last_step = holds  # a capture that failed has kept nothing
            return None
        displacement.holds_last_step, self._recordings.of_whole = True, self._fixed.tensors
        self._recordings.is_recorded()
        results = recording.handed_out()
        lost, seen = results.pop("lost") != 0.0, results.pop("loss seen", None)
        return Outcome(results, seen, lost)

    def step(self) -> None:
        """The base's step alone."""
        if _replayed(self._recordings.stepping, self._key, self._base.step):
            self._recordings.of_stepping = self._fixed.tensors
            self._recordings.is_recorded()
        else:
            self._base.step()

    def keep(self) -> Callable[[], None] | None:
        """Keep its state, in memory that stays; what is returned puts it back.

        None: the step to come will make state that is new.
        """
        recordings, tensors = self._recordings, self._fixed.tensors
        if not all(map(self._base.state.__contains__, self._displacement.layout.params)):
            return None
        if len(recordings.kept) != len(tensors) or not all(map(is_, recordings.kept, tensors)):
            recordings.keep_elsewhere(tensors, list(map(torch.empty_like, tensors)))
        kept, copies = recordings.kept, recordings.copies

        def copy() -> None:
            torch._foreach_copy_(copies, kept)

        if not _replayed(recordings.keeping, self._fixed.key, copy):
            copy()
        return lambda: torch._foreach_copy_(kept, copies)


def kept(
    base: Optimizer, recorded: RecordedBase | None, params: list[Tensor], copier: Copier
) -> Callable[[], None]:
    """Keep a base's state, recorded or not; what is returned puts it back, but no parameter."""
    put_back = None if recorded is None else recorded.keep()
    return put_back or Snapshot([base], without=params, copier=copier).restore


def _replayed(recording: Recording, key: object, work: Callable[[], object]) -> bool:
    """Whether the work, which has no numbers, was done as a recording."""

    def without_numbers(now: Mapping[str, Tensor]) -> dict[str, Number]:
        work()
        return {}

    return recording.done(key, {}, without_numbers)
