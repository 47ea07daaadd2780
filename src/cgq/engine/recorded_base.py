"""A base whose own kernels may be recorded too: all of an unsearched step is then one launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
    """Of its state: held, so that no other tensor takes their memory."""

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
        tensors = []
        for entry in base.state.values():
            for value in entry.values():
                if isinstance(value, Tensor) and not scalars.is_host(value.device):
                    tensors.append(value)
                else:
                    values.append(value)
        if not all(isinstance(value, PLAIN) for value in values):
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


def replayed(
    base: Optimizer,
    displacement: Displacement,
    loss: Tensor | float | None,
    rho: float,
    options: SearchOptions,
    rollback: Rollback,
) -> Outcome | None:
    """An unsearched step, the base's included, as one recording; None: nothing was done."""
    recording, groups = displacement.whole, base.param_groups
    fixed = Fixed.of(base) if recording.is_possible and rho else None
    if fixed is None:
        return None
    grads, first, holds = displacement.layout.gradients(), groups[0], displacement.holds_last_step
    displacement.own_memory()  # which finds out where they are
    displacement.gradients.of(grads)
    places = displacement.parameters.places, displacement.gradients.places
    lift, share = first["lift"], rho * (1.0 if is_zero(first["average"]) else first["average"])

    def work(now: Mapping[str, Tensor]) -> dict[str, Number]:
        update = _Whole(
            displacement,
            grads,
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
        with at_lifted_rates(groups, lift):
            update.update(base.step)
        step = update.unsearched_step(now.get("loss"))
        seen: dict[str, Any] = {} if step.loss is None else {"loss seen": step.loss}
        return {**step.numbers, **seen, "lost": step.skipped}

    numbers: dict[str, Number] = {"share": share} | ({} if loss is None else {"loss": loss})
    if not recording.done((*places, fixed.key, lift, options), numbers, work):
        displacement.holds_last_step = holds  # a capture that failed has kept nothing
        return None
    displacement.holds_last_step, displacement.held = True, fixed.tensors
    results = recording.handed_out()
    lost, seen = results.pop("lost") != 0.0, results.pop("loss seen", None)
    return Outcome(results, seen, lost)
