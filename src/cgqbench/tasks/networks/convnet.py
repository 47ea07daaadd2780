"""A small convolutional network with dropout, for images of 28×28 pixels."""

from __future__ import annotations

from torch import nn

WIDTH = 64


def convnet(classes: int = 10) -> nn.Sequential:
    """Two convolutions of 3×3, each halved, then one hidden layer; torch's own initial weights."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.25)),
        *(nn.Linear(32 * 5 * 5, WIDTH), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(WIDTH, classes),
    )
