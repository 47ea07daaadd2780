"""The gradients of the loss, where `.grad` holds what was made of them before the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from cgq.flat import real
from cgq.objective import Leftovers


class Unclipped:
    """Gradients as backward() left them, for as long as `.grad` holds what a block made of them.

    Along d the loss has the slope ∇f·d. If d is made of a clipped gradient c·∇f, then c·∇f·d, which
    is all that `.grad` can tell, is too flat.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The step is over, or there are no gradients any more."""
        self._values: dict[int, Tensor] = {}
        self._made = Leftovers([])

    @contextmanager
    def kept(self, params: Sequence[Tensor]) -> Iterator[None]:
        """Keep the gradients that this block is about to change."""
        before = [(param, self._of(param)) for param in params]
        values = {id(param): grad.clone() for param, grad in before if grad is not None}
        try:
            yield
        finally:
            for param in params:
                if param.grad is not None and id(param) not in values:  # the loss ignores it
                    values[id(param)] = torch.zeros_like(param.grad)
            self._values, self._made = values, Leftovers(params)

    def gradients(self, params: Sequence[Tensor]) -> list[Tensor] | None:
        """The gradients of the loss; None: they are in `.grad`."""
        if not (self._values and any(map(self._made.hold, params))):
            return None
        return [real(grad) for grad in map(self._of, params) if grad is not None]

    def _of(self, param: Tensor) -> Tensor | None:
        return self._values[id(param)] if self._made.hold(param) else param.grad
