"""The random generators a closure may draw from: Python's, NumPy's, torch's on every device."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class State(NamedTuple):
    """A generator's state and how to bring it back."""

    value: Any
    restore: Callable[[Any], object]


States = dict[str, State]


def states() -> States:
    """The present state of each generator, by its name."""
    found = {
        "python": State(random.getstate(), random.setstate),
        "torch": State(torch.get_rng_state(), torch.set_rng_state),
    }
    if numpy_random := sys.modules.get("numpy.random"):  # NumPy loads it when it is first used
        found["numpy"] = State(numpy_random.get_state(legacy=False), numpy_random.set_state)
    for backend in (torch.cuda, torch.xpu):
        if backend.is_initialized():
            for index, generator in enumerate(backend.default_generators):
                name = f"{backend.__name__}:{index}"
                found[name] = State(generator.get_state(), generator.set_state)
    if torch.backends.mps.is_available():
        found["mps"] = State(torch.mps.get_rng_state(), torch.mps.set_rng_state)
    return found


def restore(wanted: States) -> None:
    """Bring the generators back to `wanted`."""
    for state in wanted.values():
        state.restore(state.value)


def changed(before: States, after: States) -> States:
    """Those states of `before` that are no longer the same in `after`."""
    return {
        name: state
        for name, state in before.items()
        if name not in after or not _same(state.value, after[name].value)
    }


def drawn_alike(drawn_from: States, after: States) -> bool:
    """Whether who started from these states, of generators then drawn from, has come to `after`.

    To have drawn nothing is alike too: a first pass may draw once for all, as a lazy module does
    for its weights.
    """
    if not drawn_from:
        return True
    now = states()
    return changed(drawn_from, now).keys().isdisjoint(changed(after, now))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return bool(a == b) if isinstance(a, tuple) else pickle.dumps(a) == pickle.dumps(b)
