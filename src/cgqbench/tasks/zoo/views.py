"""Contrastive learning: of many views of digits, which two are of the same one?"""

from __future__ import annotations

from functools import partial

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from cgqbench.tasks.data import Dataset, Split, load
from cgqbench.tasks.data.images import cropped, normalised
from cgqbench.tasks.task import Task
from cgqbench.tasks.zoo.images import first

TRAINED, TESTED = 20_000, 2_000
HIDDEN = 10
"""The side of the square that a view does not show."""
TEMPERATURE = 0.2


def contrastive() -> Task:
    """MNIST without its labels; what is tested are views of other digits, drawn once."""
    data = load("mnist")
    train, test = twice(first(data.train, TRAINED)), twice(first(data.test, TESTED))
    return Task(
        Encoder,
        train,
        (two_views(test[0], Generator().manual_seed(9)), test[1]),
        loss=contrast,
        correct=None,
        prepared=partial(both_normalised, data),
        augmented=two_views,
    )


def twice(split: Split) -> tuple[Tensor, Tensor]:
    """Every image two times, (N, 2, 1, 28, 28), and its label, which nothing looks at."""
    return split.images[:, None].repeat(1, 2, 1, 1, 1), split.labels


def both_normalised(data: Dataset, views: Tensor) -> Tensor:
    """Pairs of images as a network takes them."""
    return in_pairs(normalised(views.flatten(0, 1), data.mean, data.std))


def in_pairs(rows: Tensor) -> Tensor:
    """Rows (2N, …) by twos, (N, 2, …).

    >>> in_pairs(torch.arange(4)).tolist()
    [[0, 1], [2, 3]]
    """
    return rows.reshape(-1, 2, *rows.shape[1:])


def two_views(images: Tensor, generator: Generator) -> Tensor:
    """Each image of a pair shifted on its own, and a square of it blackened."""
    views = cropped(images.flatten(0, 1), generator)
    hidden = [_stretch(side, len(views), generator) for side in views.shape[2:]]
    square = hidden[0][:, None, :, None] & hidden[1][:, None, None, :]
    return in_pairs(views.masked_fill(square, 0))


def _stretch(side: int, count: int, generator: Generator) -> Tensor:
    """Which of the rows or columns are hidden, (count, side)."""
    device = generator.device
    begin = torch.randint(side - HIDDEN + 1, (count, 1), generator=generator, device=device)
    place = torch.arange(side, device=device)
    return (begin <= place) & (place < begin + HIDDEN)


class Encoder(nn.Module):
    """Pairs of views (N, 2, 1, 28, 28) → a vector of length one for each, (N, 2, numbers)."""

    def __init__(self, width: int = 16, numbers: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inner = 1
        for outer in (width, 2 * width, 4 * width):
            convolution = nn.Conv2d(inner, outer, 3, stride=2, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(outer), nn.ReLU()]
            inner = outer
        self.net = nn.Sequential(
            *(*layers, nn.Flatten()),
            *(nn.Linear(inner * 4 * 4, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU()),
            nn.Linear(64, numbers),
        )

    def forward(self, views: Tensor) -> Tensor:
        """All views are one batch, also for the normalisation."""
        return in_pairs(normalize(self.net(views.flatten(0, 1)), dim=1))


def contrast(output: Tensor, labels: Tensor) -> Tensor:
    """InfoNCE: the cross-entropy of finding a view's partner among all others, by their cosines.

    >>> contrast(torch.ones(3, 2, 4) / 2, torch.zeros(3))  # all alike: one of five
    tensor(1.6094)
    """
    vectors = output.transpose(0, 1).flatten(0, 1)
    count = len(vectors)
    itself = torch.eye(count, dtype=torch.bool, device=vectors.device)
    cosines = (vectors @ vectors.T / TEMPERATURE).masked_fill(itself, float("-inf"))
    partner = (torch.arange(count, device=vectors.device) + len(output)) % count
    return cross_entropy(cosines, partner)
