"""Optimizers of whose updates no line can be made."""

from __future__ import annotations

from typing import Any

from torch.optim import LBFGS, SparseAdam


def refuse_unsuitable(base: Any) -> None:
    """Raise where no line can be made of what `base` does."""
    if isinstance(base, type) or not (hasattr(base, "param_groups") and hasattr(base, "step")):
        raise TypeError(
            f"LineSearch goes around an optimizer, not {base!r}: "
            "LineSearch(torch.optim.AdamW(model.parameters()))."
        )
    if isinstance(base, LBFGS):
        raise ValueError(
            "LBFGS evaluates the closure itself and has a search of its own: use it bare, or "
            "another optimizer inside LineSearch."
        )
    if isinstance(base, SparseAdam):
        raise ValueError(
            "SparseAdam takes sparse gradients, but a line needs them dense: use Adam, and "
            "sparse=False in the embedding."
        )
    if hasattr(base, "last_search"):
        raise ValueError(f"{type(base).__name__} searches along its own line: use it bare.")
