"""The modules inside a module, which mostly are the same in every step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import nn


class InnerModules:
    """Finds them by a walk at first, and from then on by a look at who holds whom.

    A walk takes the host as long as a few kernels. None of the modules is kept alive.

    >>> inner, model = InnerModules(), nn.Sequential(nn.Tanh())
    >>> len(inner.of(model)), len(inner.of(model))
    (2, 2)
    >>> _ = model.append(nn.Tanh())
    >>> len(inner.of(model))
    3
    """

    def __init__(self) -> None:
        self._walks: weakref.WeakKeyDictionary[nn.Module, _Walk] = weakref.WeakKeyDictionary()

    def of(self, module: nn.Module) -> list[nn.Module]:
        """The module and all that are inside it."""
        walk = self._walks.get(module)
        found = None if walk is None else walk.found_again()
        if found is None:
            found = list(module.modules())
            self._walks[module] = _Walk(found)
        return found


class _Walk:
    """What a walk has found, and which modules each of them held."""

    def __init__(self, found: list[nn.Module]) -> None:
        self._found = [weakref.ref(module) for module in found]
        self._held = _held_by(found)

    def found_again(self) -> list[nn.Module] | None:
        """The same modules; None: one of them is gone, or holds others."""
        # While all of them live, nobody else has the number of one.
        found = [module for module in [ref() for ref in self._found] if module is not None]
        is_same = len(found) == len(self._found) and _held_by(found) == self._held
        return found if is_same else None


def _held_by(modules: Iterable[nn.Module]) -> list[int]:
    """The numbers of the modules that these hold; most hold none."""
    holders = [module._modules for module in modules]
    return [id(held) for holder in holders if holder for held in holder.values()]
