"""The networks the benchmarks time."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


def mlp() -> nn.Module:
    """784-1000-10, the paper's."""
    return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.stride = outer // inner
        self.conv1 = nn.Conv2d(inner, outer, 3, self.stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        short = x[:, :, :: self.stride, :: self.stride]
        pad = out.shape[1] - short.shape[1]
        return relu(out + nn.functional.pad(short, (0, 0, 0, 0, pad // 2, pad - pad // 2)))


def resnet20() -> nn.Module:
    """Three stages of three blocks, 16-32-64 planes, 0.27 M parameters."""
    widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *(Block(inner, outer) for inner, outer in pairwise(widths)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def resnet50_parameters() -> list[nn.Parameter]:
    """Tensors shaped like the 161 parameters (25.6 M numbers) of a ResNet-50."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(width, before, 1, 1), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            shapes += [(4 * width, width, 1, 1), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(4 * width, before, 1, 1), (4 * width,), (4 * width,)]
            before = 4 * width
    shapes += [(1000, 2048), (1000,)]
    return [nn.Parameter(0.01 * torch.randn(shape)) for shape in shapes]
