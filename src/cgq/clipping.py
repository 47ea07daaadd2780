"""The gradients of the loss, where `.grad` holds what was made of them before the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from cgq.closure import Leftovers
from cgq.flat import real


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
        values = {}
        for param in params:
            grad = self._of(param)
            if grad is not None:
                values[id(param)] = grad.clone()
        yield
        self._values, self._made = values, Leftovers(params)

    def gradients(self, params: Sequence[Tensor]) -> list[Tensor] | None:
        """The gradients of the loss; None: they are in `.grad`."""
        if not any(map(self._made.hold, params)):
            return None
        return [real(grad) for grad in map(self._of, params) if grad is not None]

    def _of(self, param: Tensor) -> Tensor | None:
        return self._values[id(param)] if self._made.hold(param) else param.grad
