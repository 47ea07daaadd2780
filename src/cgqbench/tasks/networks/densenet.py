"""DenseNet-100 in its BC form: bottlenecks inside a block, compression between blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, relu

GROWTH = 12
BLOCKS = (16, 16, 16)
FIRST = 24
NARROW = 4 * GROWTH  # what a bottleneck narrows its input to


class Dense(nn.Module):
    """[x, f(x)]: a bottleneck that adds `GROWTH` channels to those it was given."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inner)
        self.narrow = nn.Conv2d(inner, NARROW, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(NARROW)
        self.convolve = nn.Conv2d(NARROW, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.narrow(relu(self.norm1(x)))
        return torch.cat([x, self.convolve(relu(self.norm2(out)))], 1)


class Transition(nn.Module):
    """Half the channels, half the height, half the width."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inner)
        self.compress = nn.Conv2d(inner, inner // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool2d(self.compress(relu(self.norm(x))), 2)


class DenseNet(nn.Module):
    """Blocks of dense layers with transitions between them."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, FIRST, 3, padding=1, bias=False)]
        width = FIRST
        for number, block in enumerate(BLOCKS):
            if number:
                layers.append(Transition(width))
                width //= 2
            layers += [Dense(width + GROWTH * layer) for layer in range(block)]
            width += GROWTH * block
        self.layers = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(width)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.norm(self.layers(x)))
        logits: Tensor = self.last(out.mean((2, 3)))
        return logits


def densenet100(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Growth 12, blocks of 16, 24 first filters, compression to one half."""
    return DenseNet(shape[0], classes)
