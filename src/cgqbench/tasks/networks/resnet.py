"""ResNets of pre-activation bottlenecks, three stages for small images."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import relu

PLANES = (16, 32, 64)
EXPANSION = 4

Norm = Callable[[int], nn.Module]
"""The number of channels → a layer that normalises them."""


class Bottleneck(nn.Module):
    """x + f(x): f narrows, convolves and widens, with a norm and a ReLU before each convolution.

    Where the shape changes, x itself (not yet activated) passes through a 1×1 convolution.
    """

    def __init__(self, inner: int, planes: int, stride: int, norm: Norm) -> None:
        super().__init__()
        outer = EXPANSION * planes
        self.norm1 = norm(inner)
        self.narrow = nn.Conv2d(inner, planes, 1, bias=False)
        self.norm2 = norm(planes)
        self.convolve = nn.Conv2d(planes, planes, 3, stride, padding=1, bias=False)
        self.norm3 = norm(planes)
        self.widen = nn.Conv2d(planes, outer, 1, bias=False)
        self.shortcut = (
            nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.narrow(relu(self.norm1(x)))
        out = self.convolve(relu(self.norm2(out)))
        total: Tensor = self.shortcut(x) + self.widen(relu(self.norm3(out)))
        return total


class ResNet(nn.Module):
    """Three stages of n bottlenecks with 16, 32 and 64 planes: depth 9n + 2."""

    def __init__(self, blocks: int, channels: int, classes: int, norm: Norm) -> None:
        super().__init__()
        width = PLANES[0]
        self.first = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        stages: list[nn.Module] = []
        for planes in PLANES:
            for block in range(blocks):
                halves = block == 0 and planes != PLANES[0]
                stages.append(Bottleneck(width, planes, 2 if halves else 1, norm))
                width = EXPANSION * planes
        self.stages = nn.Sequential(*stages)
        self.norm = norm(width)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.norm(self.stages(self.first(x))))
        logits: Tensor = self.last(out.mean((2, 3)))
        return logits


def resnet(
    depth: int, shape: tuple[int, int, int], classes: int, norm: Norm = nn.BatchNorm2d
) -> nn.Module:
    """A depth of 9n + 2: 20 for quick work, 110 and 164 as in the paper."""
    return ResNet((depth - 2) // 9, shape[0], classes, norm)
