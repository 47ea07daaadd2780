"""A step's forward passes where a host runs them itself, and their repetition as probes.

Some hosts run forward and backward on their own, micro-batch by micro-batch, before the optimizer
is asked to step. A window remembers those passes and is then a `closure(backward)` for `CGQ.step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from cgq import generators
from cgq.closure import loss_value
from cgq.probe import World

Output = TypeVar("Output")
Loss = Tensor | float


class _Pass(NamedTuple):
    """A forward pass: how the generators stood before, its loss, and how to have it again."""

    before: generators.States
    loss: Loss
    again: Callable[[], Loss | None]


class Window(Generic[Output]):
    """The passes whose losses add up to one step's, from before the first of them runs.

    Args:
        model: its buffers are kept, and those of no other module.
        loss_in: the share of a step's loss in what a pass gave; None: this one does not count.

    >>> import torch
    >>> from cgq import CGQ
    >>> model = nn.Linear(3, 1)
    >>> optimizer = CGQ(model.parameters(), model=model)
    >>> window = Window(model, lambda loss: loss / 2)
    >>> for batch in torch.randn(2, 8, 3):
    ...     def forward(batch=batch): return model(batch).square().mean()
    ...     (window.run(forward, forward) / 2).backward()
    >>> loss = window.step(optimizer.step)
    >>> optimizer.last_search.accepted
    True
    """

    def __init__(self, model: nn.Module, loss_in: Callable[[Output], Loss | None]) -> None:
        self._model, self._loss_in = model, loss_in
        self._passes: list[_Pass] = []
        self._start = self._end = _world_now(model)

    def __bool__(self) -> bool:
        return bool(self._passes)

    def run(self, first: Callable[[], Output], again: Callable[[], Output]) -> Output:
        """What `first` gives. `again` gives the same without hooks, logs and the like."""
        before = generators.states()
        output = first()
        loss = self._loss_in(output)
        if loss is not None:
            loss = loss.detach() if isinstance(loss, Tensor) else loss
            self._passes.append(_Pass(before, loss, lambda: self._loss_in(again())))
        return output

    def step(self, step: Callable[[Callable[[bool], Loss]], Output]) -> Output:
        """What the optimizer's `step` returns, once `.grad` holds the gradient of the losses."""
        # The optimizer undoes what happens inside its step, and that should be all the passes.
        self._end = _world_now(self._model)
        self.rewind()
        return step(self._closure)

    def rewind(self) -> None:
        """Leave generators and buffers as before the first pass."""
        self._start.rewind()

    def _closure(self, backward: bool) -> Loss:
        if backward:  # the host has run it
            self._end.rewind()
            return _total(one.loss for one in self._passes)
        return _total(self._losses_here())

    def _losses_here(self) -> Iterator[Loss]:
        for number, one in enumerate(self._passes):
            if number:  # what was drawn between two passes, such as a batch, is not drawn again
                generators.restore(one.before)
            loss = one.again()
            if loss is None:
                raise RuntimeError("A pass that gave a loss at first gave None when probed.")
            yield loss


def _total(losses: Iterable[Loss]) -> Loss:
    wide = [loss_value(loss, loss.device) if isinstance(loss, Tensor) else loss for loss in losses]
    return sum(wide[1:], wide[0])


def _world_now(model: nn.Module) -> World:
    """Generators and buffers as they are, to come back to."""
    world = World(model)
    with world.first_pass():
        return world
