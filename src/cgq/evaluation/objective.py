"""What a step asks of a batch: loss and gradient once, then the loss elsewhere, without a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cgq.evaluation.gradients import StaleGradients


@dataclass
class PassNotes:
    """What a host's closure, whose passes ran before it, knows of them besides their losses."""

    rounding: float = 0.0
    draws_differ: bool = False


class Objective(Protocol):
    """A batch's loss at the present parameters: once with gradient, then as probes.

    No probe leaves a trace, and each sees the noise of the first pass.
    """

    runs_backward: bool
    """Whether every evaluation pays for a gradient; known after the first pass."""

    @property
    def rounding(self) -> float:
        """The relative error of the loss, as far as its types tell; known after the first pass."""

    draws_differ: bool
    """Whether a probe drew other random numbers than the first pass."""

    dropped: Sequence[Tensor]
    """Gradients that were there before the first pass and do not count."""

    def first_pass(self, stale: StaleGradients, /) -> Tensor | float | None:
        """Leave the gradient in `.grad` and return the loss. None: there is no loss."""

    def prepare_probes(self) -> None:
        """Called before the first probe."""

    def probe(self, device: torch.device, /) -> Tensor | float:
        """The loss at the present parameters, as a wide number."""

    def end_probes(self) -> None:
        """Leave gradients, generators and buffers as after the first pass."""

    def undo(self) -> None:
        """Leave generators and buffers as before the first pass; the gradients stay."""

    def undo_buffers_where(self, lost: Tensor, /) -> None:
        """As `undo` where `lost` is true, for buffers, without the host looking at `lost`."""
