"""A base whose own kernels may be recorded too: all of an unsearched step is then one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from cgq.rules import scalars
from cgq.rules.base_rate import at_lifted_rates
from cgq.rules.scalars import Number, is_zero

PLAIN = bool, int, float, str, tuple, type(None)  # what a key can hold by value


class Fixed(NamedTuple):
    """What a recording of a base's step takes to stay as it is."""

    key: list[object]
    tensors: list[Tensor]
    """All of its state."""

    @classmethod
    def of(cls, base: Optimizer) -> Fixed | None:
        """That of this base; None: its step cannot be recorded.

        It can be of a base that says so by `capturable=True`, and of SGD, which counts no steps,
        unless somebody's hooks want to be called in each.
        """
        groups = base.param_groups
        says_so = type(base) is SGD or all(group.get("capturable") for group in groups)
        if not says_so or _is_hooked(base):
            return None
        values = [group.get(name) for group in groups for name in base.defaults]
        if not all(isinstance(value, PLAIN) for value in values):
            return None
        state = [value for entry in base.state.values() for value in entry.values()]
        tensors = [value for value in state if isinstance(value, Tensor)]
        if len(tensors) < len(state) or any(scalars.is_host(each.device) for each in tensors):
            return None
        return cls([*values, *map(Tensor.data_ptr, tensors)], tensors)


def _is_hooked(base: Optimizer) -> bool:
    return bool(
        base._optimizer_step_pre_hooks
        or base._optimizer_step_post_hooks
        or of_torch._global_optimizer_pre_hooks
        or of_torch._global_optimizer_post_hooks
    )


class _Whole(DeviceBaseUpdate):
    """An update that is recorded as a whole, so that none of its parts is."""

    _may_record = False

    def average_step(self, ceiling: Number) -> Number:
        return ceiling  # of which the share was taken already


class RecordedBase:
    """A base, and how its step, and those around it, are launched at once.

    >>> base = SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    >>> Fixed.of(base).key[:2]
    [0.1, 0]
    """

    def __init__(self, base: Optimizer, displacement: Displacement, fixed: Fixed) -> None:
        self._base, self._displacement, self._fixed = base, displacement, fixed
        displacement.own_memory()  # which finds out where they are
        self._grads = displacement.layout.gradients()
        displacement.gradients.of(self._grads)
        self._lift = base.param_groups[0]["lift"]
        places = displacement.parameters.places, displacement.gradients.places
        self._key = *places, fixed.key, self._lift

    @classmethod
    def of(cls, base: Optimizer, displacement: Displacement) -> RecordedBase | None:
        """This base, for a step; None: its kernels are launched by itself, one by one."""
        if not displacement.whole.is_possible:
            return None
        fixed = Fixed.of(base)
        return None if fixed is None else cls(base, displacement, fixed)

    def unsearched_step(
        self, loss: Tensor | float | None, rho: float, options: SearchOptions, rollback: Rollback
    ) -> Outcome | None:
        """All of a step that is not searched as one recording; None: nothing was done."""
        displacement, recording = self._displacement, self._displacement.whole
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
        displacement.holds_last_step, displacement.of_whole = True, self._fixed.tensors
        results = recording.handed_out()
        lost, seen = results.pop("lost") != 0.0, results.pop("loss seen", None)
        return Outcome(results, seen, lost)

    def step(self) -> None:
        """The base's step alone."""
        if self._has_replayed(self._displacement.stepping, self._key, self._base.step):
            self._displacement.of_stepping = self._fixed.tensors
        else:
            self._base.step()

    def keep(self) -> Callable[[], None]:
        """Keep its state, in memory that stays; what is returned puts it back."""
        displacement, tensors = self._displacement, self._fixed.tensors
        kept, copies = displacement.kept
        if len(kept) != len(tensors) or not all(map(is_, kept, tensors)):
            kept, copies = displacement.kept = tensors, list(map(torch.empty_like, tensors))

        def copy() -> None:
            torch._foreach_copy_(copies, kept)

        if copies and not self._has_replayed(displacement.keeping, self._fixed.key, copy):
            copy()
        return lambda: torch._foreach_copy_(kept, copies) if copies else None

    def _has_replayed(self, recording: Any, key: object, work: Callable[[], object]) -> bool:
        def without_numbers(now: Mapping[str, Tensor]) -> dict[str, Number]:
            work()
            return {}

        done: bool = recording.done(key, {}, without_numbers)
        return done
