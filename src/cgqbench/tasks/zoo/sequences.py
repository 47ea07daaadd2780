"""A recurrent network that adds up what is marked in a noisy sequence."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import mse_loss

from cgqbench.tasks.networks.recurrent import SequenceGRU
from cgqbench.tasks.task import Task

TRAINED, TESTED = 20_000, 2_000
LENGTH, MARKED = 50, 0.2
NOISE = 0.1


def gru_regression() -> Task:
    """The sum of the marked values, divided by its standard deviation; values are seen noisily."""
    draw = Generator().manual_seed(4)
    shape = TRAINED + TESTED, LENGTH
    values = torch.rand(shape, generator=draw) - 0.5
    marks = torch.rand(shape, generator=draw).less(MARKED).float()
    # A uniform value has the variance 1/12.
    sums = (values * marks).sum(1) / (LENGTH * MARKED / 12) ** 0.5
    seen = values + NOISE * torch.randn(shape, generator=draw)
    inputs: Tensor = torch.stack([seen, marks], 2)
    return Task(
        SequenceGRU,
        (inputs[:TRAINED], sums[:TRAINED]),
        (inputs[TRAINED:], sums[TRAINED:]),
        loss=mse_loss,
        correct=None,
    )
