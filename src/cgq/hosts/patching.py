"""A host's method replaced for a while, and left as it was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_MISSING = object()


@contextmanager
def patched(host: object, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Let the host call this where it calls its method of that name.

    What somebody else has put there before is there again afterwards.
    """
    before = vars(host).get(name, _MISSING)
    vars(host)[name] = function
    try:
        yield
    finally:
        if before is _MISSING:
            del vars(host)[name]
        else:
            vars(host)[name] = before
