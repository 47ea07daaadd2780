"""A step's forward passes where a host runs them itself, and their repetition as probes.

Some hosts run forward and backward on their own, micro-batch by micro-batch, before the optimizer
is asked to step. `MicroBatches` remembers those passes and makes a `closure(backward)` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from cgq.engine.optimizer import SearchOptimizer
from cgq.evaluation import rng
from cgq.evaluation.loss import loss_value
from cgq.evaluation.objective import PassNotes
from cgq.evaluation.precision import dtypes_behind, rounding
from cgq.hosts.host_environment import HostEnvironment, host_environment

Output = TypeVar("Output")
Loss = Tensor | float


class _Pass(NamedTuple):
    """A forward pass: the generators before it, those it drew from, and those after; its loss."""

    before: rng.States
    drawn_from: rng.States
    after: rng.States
    loss: Loss
    again: Callable[[], Loss | None]


class MicroBatches(Generic[Output]):
    """The passes whose losses add up to one step's, from before the first of them runs.

    Args:
        model: the one that is trained. Its buffers are kept.
        loss_in: the share of a step's loss in what a pass gave; None: this one does not count.
        optimizer: the one that takes the step. It then keeps the buffers of its own `model` too,
            and those of all other modules that the passes call.

    >>> import torch
    >>> from cgq import CGQ
    >>> model = nn.Linear(3, 1)
    >>> optimizer = CGQ(model.parameters())
    >>> batches = MicroBatches(model, lambda loss: loss / 2, optimizer)
    >>> for batch in torch.randn(2, 8, 3):
    ...     def forward(batch=batch): return model(batch).square().mean()
    ...     (batches.run(forward, forward) / 2).backward()
    >>> loss = batches.step(optimizer.step)
    >>> optimizer.last_search.accepted
    True
    """

    def __init__(
        self,
        model: nn.Module,
        loss_in: Callable[[Output], Loss | None],
        optimizer: SearchOptimizer | None = None,
    ) -> None:
        self._model, self._loss_in = model, loss_in
        self._environment = (
            HostEnvironment(model) if optimizer is None else host_environment(optimizer, model)
        )
        self._passes: list[_Pass] = []
        self._after: rng.States = {}
        self._notes = PassNotes()

    def __bool__(self) -> bool:
        return bool(self._passes)

    def run(
        self,
        first: Callable[[], Output],
        again: Callable[[], Output],
        *,
        has_backward: bool = False,
    ) -> Output:
        """What `first` gives, which may run backward. `again` gives the same without a trace."""
        before, self._after = rng.states(), {}
        with self._environment.part(self._device.type):
            output = first()
        loss = self._loss_in(output)
        if not (self._after or has_backward):
            self.has_come_to(loss)
        if loss is not None:
            self._note_rounding(loss)
            drawn_from = rng.changed(before, self._after) if self._after else {}
            self._passes.append(
                _Pass(before, drawn_from, self._after, _detached(loss), self._probe_of(again))
            )
        return output

    def has_come_to(self, loss: Loss | None) -> None:
        """Say that a pass is at its loss, before its backward and in the autocast around it.

        A pass without backward is there at its end. Of one with it nobody notices, unless this is
        said, that probes draw other numbers.
        """
        self._after = rng.states()
        if loss is not None:
            self._note_rounding(loss)

    def step(self, step: Callable[[Callable[[bool], Loss]], Output]) -> Output:
        """What the optimizer's `step` returns, once `.grad` holds the gradient."""
        # The optimizer undoes what happens inside its step, and that should be all the passes.
        self._environment.end_parts()
        return step(_Closure(self._passes, self._environment, self._notes))

    def rewind(self) -> None:
        """Leave generators and buffers as before the first pass."""
        self._environment.rewind()

    def _probe_of(self, again: Callable[[], Output]) -> Callable[[], Loss | None]:
        return lambda: self._loss_in(again())

    @property
    def _device(self) -> torch.device:
        return next(self._model.parameters()).device

    def _note_rounding(self, loss: Loss) -> None:
        error = rounding(dtypes_behind(loss, self._device))
        self._notes.rounding = max(self._notes.rounding, error)


class _Closure:
    """The passes as a `closure(backward)`."""

    def __init__(self, passes: list[_Pass], environment: HostEnvironment, notes: PassNotes) -> None:
        self._passes, self._environment, self.notes = passes, environment, notes

    def __call__(self, backward: bool) -> Loss:
        if backward:  # the host has run it
            self._environment.resume()
            return _total(one.loss for one in self._passes)
        return _total(self._losses_here())

    def _losses_here(self) -> Iterator[Loss]:
        for number, one in enumerate(self._passes):
            if number:  # what was drawn between two passes, such as a batch, is not drawn again
                rng.restore(one.before)
            try:
                loss = one.again()
            except RuntimeError as error:
                if "does not require grad" not in str(error):
                    raise
                raise RuntimeError(DIFFERENTIATES) from error
            if loss is None:
                raise RuntimeError("A pass that gave a loss at first gave None when probed.")
            self.notes.draws_differ |= not rng.drawn_alike(one.drawn_from, one.after)
            yield loss


DIFFERENTIATES = (
    "A probe of the line search repeats the forward pass without gradient, but something in it "
    "differentiates. Put `with torch.enable_grad():` around that part, from the forward pass it "
    "differentiates to the derivative. A probe must not call backward() on the loss."
)


def _detached(loss: Loss) -> Loss:
    return loss.detach() if isinstance(loss, Tensor) else loss


def _total(losses: Iterable[Loss]) -> Loss:
    wide = [loss_value(loss, loss.device) if isinstance(loss, Tensor) else loss for loss in losses]
    return sum(wide[1:], wide[0])
