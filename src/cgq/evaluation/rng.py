"""The random generators a closure may draw from: Python's, NumPy's, torch's on every device."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

States = dict[str, tuple[Any, Callable[[Any], object]]]
"""By its name, a generator's state and the function that brings it back."""

# To copy one of these takes as long as a small layer; to copy one of torch's takes nothing.
COSTLY = {"python", "numpy"}


def states(wanted: Callable[[str], bool] = lambda name: True) -> States:
    """The present state of each generator whose name is wanted."""
    return {name: (read(), back) for name, read, back in _generators(wanted)}


def is_quick(name: str) -> bool:
    """Whether it can be looked at in every step."""
    return name not in COSTLY


def _generators(
    wanted: Callable[[str], bool],
) -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], object]]]:
    if wanted("python"):
        yield "python", random.getstate, random.setstate
    if wanted("torch"):
        yield "torch", torch.default_generator.get_state, torch.set_rng_state
    # NumPy loads it when it is first used.
    if wanted("numpy") and (numpy_random := sys.modules.get("numpy.random")):
        yield "numpy", partial(numpy_random.get_state, legacy=False), numpy_random.set_state
    for backend in (torch.cuda, torch.xpu):
        if backend.is_initialized():
            for index, generator in enumerate(backend.default_generators):
                if wanted(name := f"{backend.__name__}:{index}"):
                    yield name, generator.get_state, generator.set_state
    if wanted("mps") and torch.backends.mps.is_available():
        yield "mps", torch.mps.get_rng_state, torch.mps.set_rng_state


def restore(wanted: States) -> None:
    """Bring the generators back to `wanted`."""
    for value, bring_back in wanted.values():
        bring_back(value)


def changed(before: States, after: States) -> States:
    """Those states of `before` that are no longer the same in `after`."""
    return {
        name: state
        for name, state in before.items()
        if name not in after or not _same(state[0], after[name][0])
    }


def drawn_alike(drawn_from: States, after: States) -> bool:
    """Whether who started from these states, of generators then drawn from, has come to `after`.

    To have drawn nothing is alike too: a first pass may draw once for all, as a lazy module does
    for its weights.
    """
    if not drawn_from:
        return True
    now = states(drawn_from.__contains__)
    return changed(drawn_from, now).keys().isdisjoint(changed(after, now))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return bool(a == b) if isinstance(a, tuple) else pickle.dumps(a) == pickle.dumps(b)
