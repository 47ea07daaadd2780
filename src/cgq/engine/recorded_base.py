"""A base whose own kernels may be recorded too: all of an unsearched step is then one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_

import torch
from torch import Tensor
from torch.optim import Optimizer

from cgq.engine.base_update import Displacement
from cgq.engine.device_base_update import DeviceBaseUpdate
from cgq.engine.device_direction import as_results, outcome_of
from cgq.engine.direction import Outcome, averaged_share
from cgq.engine.options import SearchOptions
from cgq.engine.recordable import Fixed, says_it_can
from cgq.engine.rollback import Rollback
from cgq.evaluation.copies import Copier
from cgq.evaluation.snapshots import Snapshot
from cgq.rules.base_rate import at_lifted_rates
from cgq.rules.scalars import Number
from cgq.vectors.recording import Recording


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
        self._key = *places, groups, fixed.settings, fixed.places, self._lift

    @classmethod
    def of(
        cls,
        base: Optimizer,
        displacement: Displacement,
        grads: list[Tensor],
        groups: Sequence[int],
    ) -> RecordedBase | None:
        """This base; None: it launches its kernels by itself, one by one.

        Of each parameter that has a gradient, `grads` are these and `groups` the numbers of its
        group. What moves in each step, as gradients mostly do, or a scheduled rate, is seen at
        little cost.
        """
        recordings = displacement.of_base
        if not recordings.is_possible or not says_it_can(base):
            return None
        ends = grads[0].data_ptr(), grads[-1].data_ptr()
        if not recordings.comes_again((*ends, base.param_groups[0].get("lr"))):
            return None
        fixed = recordings.fixed = Fixed.of(base, recordings.fixed)
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
            return as_results(update.unsearched_step(now.get("loss")))

        numbers: dict[str, Number] = {"share": averaged_share(first) * rho}
        if loss is not None:
            numbers["loss"] = loss
        if not recording.done((self._key, options), numbers, work):
            displacement.holds_last_step = holds  # a capture that failed has kept nothing
            return None
        displacement.holds_last_step, self._recordings.of_whole = True, self._fixed.tensors
        self._recordings.note_recorded()
        return outcome_of(recording.handed_out())

    def step(self) -> None:
        """The base's step alone."""
        if _replayed(self._recordings.stepping, self._key, self._base.step):
            self._recordings.of_stepping = self._fixed.tensors
            self._recordings.note_recorded()
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

        if not _replayed(recordings.keeping, self._fixed.places, copy):
            copy()
        return lambda: torch._foreach_copy_(kept, copies)


def keep_state(
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
