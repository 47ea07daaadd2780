"""A loss that a closure returned: whether it is one, and its value."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor

from cgq.rules import scalars


def check_loss(loss: Any) -> None:
    """Refuse what is not one real number."""
    if isinstance(loss, Tensor):
        if loss.numel() != 1 or loss.is_complex():
            raise ValueError(
                f"The closure returned a {loss.dtype} tensor of shape {tuple(loss.shape)}; a line "
                "search needs one real number. Reduce it, for example with .mean()."
            )
    elif not isinstance(loss, numbers.Real):
        raise ValueError(
            f"The closure returned {type(loss).__name__}; return the loss as a tensor or a number."
        )


def detached(loss: Tensor | float | None) -> Tensor | float | None:
    """The same without its graph, in memory that no other pass writes to.

    A closure that sums micro-batches may do so in one tensor, each time anew.
    """
    if not isinstance(loss, Tensor):
        return loss
    return loss.detach() if loss.requires_grad else loss.clone()


def loss_value(loss: Tensor | float, device: torch.device) -> Tensor | float:
    """The loss as a wide number of our own: a float, or a 0-dim tensor on an accelerator."""
    if not isinstance(loss, Tensor):
        return float(loss)
    if scalars.is_host(loss.device):
        return loss.item()
    return loss.detach().reshape(()).to(device, scalars.scalar_dtype(device), copy=True)
