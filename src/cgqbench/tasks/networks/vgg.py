"""VGG-16 for images of 32×32 pixels, without BatchNorm."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""(width, convolutions) between two halvings of the image."""

SIDE = 32  # five halvings leave one pixel


def vgg16(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Thirteen 3×3 convolutions, then two 512-wide layers with dropout, then the output."""
    channels, height, width = shape
    if (height, width) != (SIDE, SIDE):
        raise ValueError(
            f"vgg16 is made for images of {SIDE}×{SIDE} pixels, not {height}×{width}. Choose "
            "another network, or a dataset of that size: svhn, cifar10 or cifar100."
        )
    layers: list[nn.Module] = []
    for wide, convolutions in STAGES:
        for inner, outer in pairwise([channels] + [wide] * convolutions):
            layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        channels = wide
    layers.append(nn.Flatten())
    for _ in range(2):
        layers += [nn.Dropout(), nn.Linear(channels, channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(channels, classes))
