"""A regression on a table: BatchNorm of its columns, dropout, and a loss that forgives outliers."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import huber_loss

from cgqbench.tasks.task import Task

TRAINED, TESTED = 12_000, 4_000
COLUMNS = 16
NOISE, FREEDOM = 0.2, 3
"""The noise is Student's t with so many degrees of freedom, times its scale."""


def tabular() -> Task:
    """Friedman's function of five columns, standardised, with noise; eleven columns say nothing."""
    draw = Generator().manual_seed(10)
    count = TRAINED + TESTED
    columns = torch.rand(count, COLUMNS, generator=draw)
    normal = torch.randn(count, 1 + FREEDOM, generator=draw)
    outliers = normal[:, 0] / normal[:, 1:].square().mean(1).sqrt()
    targets = friedman(columns) + NOISE * outliers
    inputs = columns * torch.logspace(-1, 2, COLUMNS)  # as if they had units
    return Task(
        table_network,
        (inputs[:TRAINED], targets[:TRAINED]),
        (inputs[TRAINED:], targets[TRAINED:]),
        loss=huber,
        correct=None,
    )


def friedman(x: Tensor) -> Tensor:
    """10·sin(πx₁x₂) + 20·(x₃ - ½)² + 10x₄ + 5x₅, without its mean, over its deviation."""
    value = (
        10 * torch.sin(math.pi * x[:, 0] * x[:, 1])
        + 20 * (x[:, 2] - 0.5).square()
        + 10 * x[:, 3]
        + 5 * x[:, 4]
    )
    return (value - 14.4) / 4.9


def table_network(hidden: int = 256, dropped: float = 0.1) -> nn.Module:
    """Columns as they come are normalised; three hidden layers."""
    layers: list[nn.Module] = [nn.BatchNorm1d(COLUMNS)]
    for inner in (COLUMNS, hidden, hidden):
        layers += [nn.Linear(inner, hidden), nn.ReLU(), nn.Dropout(dropped)]
    return nn.Sequential(*layers, nn.Linear(hidden, 1), nn.Flatten(0))


def huber(output: Tensor, target: Tensor) -> Tensor:
    """½e² up to an error of one half, straight from there on."""
    return huber_loss(output, target, delta=0.5)
