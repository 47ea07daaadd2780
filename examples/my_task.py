"""A task of your own for `cgq compare --task examples/my_task.py`: copy and change it.

`model()` builds a fresh network, `data()` returns training inputs and targets and test inputs and
targets as whole tensors, and `loss(output, target)`, if it is there, takes the place of the
cross-entropy.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A sine that speeds up, with a little noise."""
    x = torch.rand(4000, 1, generator=Generator().manual_seed(0))
    noise = torch.randn(4000, 1, generator=Generator().manual_seed(1))
    y = torch.sin(4 * math.pi * x**2) + 0.05 * noise
    return x[:3000], y[:3000], x[3000:], y[3000:]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)
