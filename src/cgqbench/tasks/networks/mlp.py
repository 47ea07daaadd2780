"""The paper's network for MNIST: one hidden layer."""

from __future__ import annotations

from math import prod

from torch import nn

HIDDEN = 1000


def mlp(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """pixels-1000-classes with a ReLU: 784-1000-10 for MNIST."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)
    )
