"""Will it be clicked? Made-up visits, each a few categories, of which some are very rare."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from cgqbench.tasks.task import Task

FIELDS = (4_000, 2_000, 1_000, 500, 200, 50, 20, 10)
"""Categories of each field; the k-th is drawn with a probability ∝ 1/k."""
TRAINED, TESTED = 200_000, 20_000
RANK = 4
SELDOM = -1.5
"""The mean logit."""
STRENGTH = 1.5
"""The standard deviation of the part of it that a category gives alone, and of that of pairs."""


def clicks() -> Task:
    """Whether a visit ends with a click depends on its categories and on pairs of them.

    The logit is a constant, a bias of each category, and the inner product of every two of the
    categories' hidden vectors.
    """
    draw = Generator().manual_seed(6)
    count = TRAINED + TESTED
    columns = [
        torch.multinomial(1 / torch.arange(1.0, size + 1), count, True, generator=draw)
        for size in FIELDS
    ]
    fields = list(zip(FIELDS, columns, strict=True))
    hidden = torch.stack([torch.randn(n, RANK, generator=draw)[one] for n, one in fields], 1)
    biases = torch.stack([torch.randn(n, generator=draw)[one] for n, one in fields]).sum(0)
    visits = torch.stack(columns, 1)
    pairs = len(FIELDS) * (len(FIELDS) - 1) / 2
    product = (hidden.sum(1).square() - hidden.square().sum(1)).sum(1) / 2
    signal = biases / math.sqrt(len(FIELDS)) + product / math.sqrt(pairs * RANK)
    logits = SELDOM + STRENGTH * signal
    clicked = torch.rand(count, generator=draw).less(logits.sigmoid()).float()
    return Task(
        Clicks,
        (visits[:TRAINED], clicked[:TRAINED]),
        (visits[TRAINED:], clicked[TRAINED:]),
        loss=binary_cross_entropy_with_logits,
        correct=None,
    )


class Clicks(nn.Module):
    """Categories (N, fields) → the logit of a click (N,): a table each, and a small network."""

    def __init__(self, width: int = 16, hidden: int = 128) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in FIELDS)
        for table in self.tables.parameters():
            nn.init.normal_(table, std=0.1)
        self.net = nn.Sequential(
            *(nn.Linear(len(FIELDS) * width, hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden), nn.ReLU()),
            nn.Linear(hidden, 1),
        )

    def forward(self, visits: Tensor) -> Tensor:
        """From all rows of the tables, side by side."""
        rows = [table(field) for table, field in zip(self.tables, visits.unbind(1), strict=True)]
        logit: Tensor = self.net(torch.cat(rows, 1)).squeeze(1)
        return logit
