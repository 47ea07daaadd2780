"""Settings of the baselines, checked."""

from __future__ import annotations


def require(valid: bool, name: str, value: object, cure: str) -> None:
    """Raise a `ValueError` that names a setting and its cure, unless it is valid."""
    if not valid:
        raise ValueError(f"Invalid {name} value: {value}. {cure}")
