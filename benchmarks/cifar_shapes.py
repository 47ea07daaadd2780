"""A task of CIFAR-10's shape that needs no files: classes are patterns under noise.

`CGQ_NETWORK` names the network (default resnet110), `CGQ_IMAGES` how many images to train on.
"""

from __future__ import annotations

import os

import torch
from torch import Generator, Tensor, nn

from cgqbench.tasks.networks import network

SHAPE = (3, 32, 32)
channels_last = True


def model() -> nn.Module:
    return network(os.environ.get("CGQ_NETWORK", "resnet110"), SHAPE, 10)


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pixels as bytes, and labels."""
    patterns = torch.randn(10, *SHAPE, generator=Generator().manual_seed(0))
    generator = Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    noise = torch.randn(count, *SHAPE, generator=generator)
    return (64 * (patterns[labels] / 4 + noise) + 128).clamp(0, 255).to(torch.uint8), labels


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y = images(int(os.environ.get("CGQ_IMAGES", "50000")), 1)
    test_x, test_y = images(10_000, 2)
    return x / 128 - 1, y, test_x / 128 - 1, test_y
