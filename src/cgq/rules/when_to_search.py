"""Which batches are searched, and the average step that the others take. Numbers only.

While a run is guarded, `Trust.alert` in `trust.py` asks for every batch.
"""

from __future__ import annotations

import hashlib

from cgq.rules.scalars import Number, is_zero


def coin(seed: int, step: int, probability: float) -> bool:
    """Whether batch number `step` is searched.

    The draw is a function of seed and step alone: it agrees on every rank, leaves the global
    generators alone, and a resumed run goes on with the draws it would have had.

    >>> sum(coin(0, step, 0.1) for step in range(10_000))
    949
    """
    if probability >= 1.0:
        return True
    digest = hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < probability * 2.0**64


def smoothed(old: Number, found: Number, smoothing: float) -> Number:
    """smoothing·old + (1 - smoothing)·found; `found` alone while there is no old value (0.0).

    >>> smoothed(0.0, 0.2, 0.5), smoothed(0.4, 0.2, 0.5), smoothed(0.4, 0.2, 0.0)
    (0.2, 0.30000000000000004, 0.2)
    """
    return found if is_zero(old) else smoothing * old + (1.0 - smoothing) * found
