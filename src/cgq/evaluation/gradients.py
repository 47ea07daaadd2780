"""What `.grad` holds before a step: stale gradients, and those changed since backward()."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property

import torch
from torch import Tensor

from cgq.vectors.layout import real


class StaleGradients:
    """The gradients a step left in `.grad`: the next one need not keep them.

    Those that the caller has put there (`from_caller`) may count again: who runs backward() and
    then hands over a loss without a graph means what is in `.grad`, however old it is. Where the
    caller has cleared them (`cleared`), all that comes later is of his making.
    """

    def __init__(self, params: Sequence[Tensor], from_caller: bool = False) -> None:
        self.from_caller, self.cleared = from_caller, False
        self._ids = list(map(id, params))
        grads = [param.grad for param in params]
        self._then = [_no_gradient if grad is None else weakref.ref(grad) for grad in grads]
        self._versions = [0 if grad is None else grad._version for grad in grads]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {number: place for place, number in enumerate(self._ids)}

    def hold(self, param: Tensor) -> bool:
        """Whether its gradient is the one that was there then, and nobody wrote to it since."""
        grad, place = param.grad, self._places.get(id(param))
        if grad is None or place is None:
            return False
        return grad is self._then[place]() and grad._version == self._versions[place]

    def new(self, params: Sequence[Tensor]) -> list[Tensor | None]:
        """What is in `.grad` of each, but None where that is held here."""
        if list(map(id, params)) != self._ids:
            return [None if self.hold(param) else param.grad for param in params]
        grads = [param.grad for param in params]
        return [
            None if grad is None or (grad is then() and grad._version == version) else grad
            for grad, then, version in zip(grads, self._then, self._versions, strict=True)
        ]


def _no_gradient() -> None:
    """Where no gradient was."""


class UnclippedGradients:
    """Gradients as backward() left them, for as long as `.grad` holds what a block made of them.

    Along d the loss has the slope ∇f·d. If d is made of a clipped gradient c·∇f, then c·∇f·d, which
    is all that `.grad` can tell, is too flat.
    """

    def __init__(self) -> None:
        self._values: dict[int, Tensor] = {}
        self._clipped = StaleGradients([])

    @contextmanager
    def before_clipping(self, params: Sequence[Tensor]) -> Iterator[None]:
        """Keep the gradients that this block is about to change."""
        before = [(param, self._of(param)) for param in params]
        values = {id(param): grad.clone() for param, grad in before if grad is not None}
        try:
            yield
        finally:
            for param in params:
                if param.grad is not None and id(param) not in values:  # the loss ignores it
                    values[id(param)] = torch.zeros_like(param.grad)
            self._values, self._clipped = values, StaleGradients(params)

    def of(self, params: Sequence[Tensor]) -> list[Tensor] | None:
        """The gradients of the loss; None: they are in `.grad`."""
        if not (self._values and any(map(self._clipped.hold, params))):
            return None
        return [real(grad) for grad in map(self._of, params) if grad is not None]

    def _of(self, param: Tensor) -> Tensor | None:
        return self._values[id(param)] if self._clipped.hold(param) else param.grad


class GradientLog:
    """Whose gradients are in `.grad`, from one step to the next."""

    def __init__(self) -> None:
        self.stale = StaleGradients([])
        self._unclipped: UnclippedGradients | None = None
        self._found: StaleGradients | None = None
        self._looked_for_dropped = False

    def found(self, params: Sequence[Tensor]) -> None:
        """What is in `.grad` of new parameters is hardly an accumulation."""
        self._found = StaleGradients(params)

    def used(self, params: Sequence[Tensor], from_caller: bool = False) -> None:
        """What is in `.grad` now is no gradient of the next step, unless nobody makes one."""
        self.stale, self._found = StaleGradients(params, from_caller), None
        self._unclipped = None

    def cleared(self, params: Sequence[Tensor]) -> None:
        """The caller has left no gradient, or zeros."""
        self.used(params)
        self.stale.cleared = True

    def forget_unclipped(self) -> None:
        """No step will ask for them."""
        self._unclipped = None

    def were_found(self, params: Sequence[Tensor]) -> bool:
        """Whether gradients are there of before the optimizer was made."""
        return self._found is not None and any(map(self._found.hold, params))

    def are_missed(self, dropped: Sequence[Tensor]) -> bool:
        """Whether gradients that do not count are worth a word; looked at once.

        On an accelerator the host waits for the norms.
        """
        if not dropped or self._looked_for_dropped:
            return False
        self._looked_for_dropped = True
        return any(bool(grad.norm()) for grad in dropped)

    def clipping(self, params: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Keep the gradients that a block is about to change."""
        self._unclipped = self._unclipped or UnclippedGradients()
        return self._unclipped.before_clipping(params)

    def unclipped(self, params: Sequence[Tensor]) -> list[Tensor] | None:
        """The gradients of the loss, where `.grad` holds clipped ones."""
        return None if self._unclipped is None else self._unclipped.of(params)
