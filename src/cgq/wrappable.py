"""Which optimizers a line search can go around, and how far it may be told to go."""

from __future__ import annotations

import math
from typing import Any

from torch.optim import LBFGS, SparseAdam

from cgq.searching import Searching


def check(base: Any) -> None:
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
    if isinstance(base, Searching):
        raise ValueError(f"{type(base).__name__} searches along its own line: use it bare.")


def check_length(max_relative_step: float, full_steps: float) -> None:
    """Raise where these are no length and no number of steps."""
    if max_relative_step is None or not 0.0 < max_relative_step < math.inf:
        raise ValueError(
            f"Invalid max_relative_step value: {max_relative_step}. Use a positive number such as "
            "0.005: a step of LineSearch is measured by the weights alone."
        )
    if not full_steps > 0:
        raise ValueError(f"Invalid full_steps value: {full_steps}. Use a number such as 1000.")
