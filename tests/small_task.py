"""A small classification with BatchNorm and dropout, as a task file: everything a run must keep."""

import torch
from torch import Generator, Tensor, nn


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
    )


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = torch.randn(330, 6, generator=Generator().manual_seed(0))
    targets = (inputs[:, :3] + 0.3 * inputs[:, 3:]).argmax(1)
    return inputs[:230], targets[:230], inputs[230:], targets[230:]
