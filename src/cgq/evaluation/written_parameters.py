"""Frozen parameters that a forward pass writes itself, as those of a teacher are."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor, nn


class WrittenParameters:
    """Finds the frozen parameters that a pass has changed: they are then as good as buffers.

    A network that learns from a moving average of itself may bring that up to date in `forward`. To
    copy whatever is frozen in case it is written to would double a large network. So a pass that is
    watched shows which are, and their values are known from the next one on.

    >>> written, model = WrittenParameters(), nn.Linear(2, 2).requires_grad_(False)
    >>> written.watch([model])
    >>> _ = model.weight.mul_(0.9)
    >>> written.look()
    >>> [known is model.weight for known in written.known()]
    [True]
    """

    def __init__(self) -> None:
        self._watched: list[tuple[Tensor, tuple[int, int]]] = []
        self._known: list[weakref.ref[Tensor]] = []

    def watch(self, modules: Iterable[nn.Module]) -> None:
        """Note how the frozen parameters of these modules are, before a pass."""
        known = set(map(id, self.known()))
        self._watched += [
            (param, _mark(param))
            for module in modules
            for param in module._parameters.values()
            if type(param) is nn.Parameter and not param.requires_grad and id(param) not in known
        ]

    def look(self) -> None:
        """Find those that the pass has changed."""
        self._known += [weakref.ref(param) for param, then in self._watched if _mark(param) != then]
        self._watched = []

    def known(self) -> list[Tensor]:
        """Those that were found, as far as they are frozen still."""
        found = [ref() for ref in self._known]
        return [param for param in found if param is not None and not param.requires_grad]


def _mark(param: Tensor) -> tuple[int, int]:
    """Another one once it was written to, or was given other data."""
    return param._version, param.data_ptr()
