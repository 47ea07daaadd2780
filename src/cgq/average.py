"""Averaging of the weights in place of a learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from cgq.scalars import is_host, scalar_dtype

# torch annotates the callback's arguments as tuple-or-list; any sequence of tensors will do.
MultiAverage = Callable[[Any, Any, Any], None]


def anytime_average(eta: float = 8.0) -> MultiAverage:
    """A `multi_avg_fn` for torch's `AveragedModel` that needs no horizon.

    After the t-th step: mean ← mean + (η+1)/(t+η)·(θ - mean). The window is always about the last
    1/(η+1) of the run, wherever the run stops; η = 0 is the plain mean of all steps.

    >>> from torch.optim.swa_utils import AveragedModel
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> averaged = AveragedModel(model, multi_avg_fn=anytime_average(eta=0))
    >>> for value in (1.0, 2.0, 6.0):
    ...     _ = torch.nn.init.constant_(model.weight, value)
    ...     averaged.update_parameters(model)
    >>> round(averaged.module.weight.item(), 6)
    3.0
    """
    if not 0.0 <= eta < math.inf:
        raise ValueError(f"Invalid eta: {eta}. It must be 0 (plain mean) or more.")

    @torch.no_grad()
    def update(mean: Sequence[Tensor], current: Sequence[Tensor], num_averaged: Tensor) -> None:
        means, currents = list(mean), list(current)
        if not (means[0].is_floating_point() or means[0].is_complex()):
            torch._foreach_copy_(means, currents)  # counters among the buffers
            return
        # AveragedModel copies the first step itself, so this call sees step num_averaged + 1.
        if is_host(num_averaged.device):
            torch._foreach_lerp_(means, currents, (eta + 1.0) / (num_averaged.item() + 1.0 + eta))
        else:  # a tensor of one number, so that the host need not read it
            t = num_averaged.to(scalar_dtype(num_averaged.device)) + 1.0
            change = torch._foreach_sub(currents, means)
            torch._foreach_mul_(change, (eta + 1.0) / (t + eta))
            torch._foreach_add_(means, change)

    return update


class Averaged(AveragedModel):
    """Torch's `AveragedModel`, without its wait for an accelerator at each update.

    Torch sends the count of updates to the device, and so waits for all that goes on there. Here
    the count stays on the host, and one kernel has the weight as a number. The state is the same.

    >>> model = torch.nn.Linear(1, 1)
    >>> averaged = Averaged(model, multi_avg_fn=anytime_average())
    >>> averaged.update_parameters(model)
    >>> averaged.n_averaged.item()
    1
    """

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Take in the present weights; what the average has of buffers becomes the model's."""
        means: list[Tensor] = list(self.module.parameters())
        currents: list[Tensor] = list(model.parameters())
        alike = len({(each.device, each.dtype) for each in means + currents}) == 1
        counted = is_host(self.n_averaged.device) and self.n_averaged.item()
        if self.use_buffers or self.multi_avg_fn is None or not (alike and counted):
            super().update_parameters(model)  # its first update is a copy
            return
        self.multi_avg_fn(means, currents, self.n_averaged)
        for mine, its in zip(self.module.buffers(), model.buffers(), strict=True):
            mine.copy_(its)
        self.n_averaged += 1
