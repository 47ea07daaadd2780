"""Names of parametrised options that are the same in every process."""

from __future__ import annotations

import functools
from typing import Any


def option_id(options: dict[str, Any]) -> str:
    """For example `fit=least_squares-smoothing=0.5`."""

    def word(value: Any) -> str:
        if isinstance(value, functools.partial):
            return value.func.__name__ + "_partial"
        return str(getattr(value, "__name__", value))

    return "-".join(f"{key}={word(value)}" for key, value in options.items()) or "defaults"
