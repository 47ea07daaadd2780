"""Matrix factorisation: made-up ratings of items by users, some of them held out."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import mse_loss

from cgqbench.tasks.task import Task

USERS, ITEMS, RANK = 2_000, 1_000, 6
TRAINED, TESTED = 120_000, 10_000
NOISE = 0.5
"""The noise's standard deviation, next to a signal of one."""


def factorisation() -> Task:
    """Each rating is a sum of two biases, an inner product and noise."""
    draw = Generator().manual_seed(3)
    count = TRAINED + TESTED
    pairs = torch.randperm(USERS * ITEMS, generator=draw)[:count]  # none is rated twice
    user, item = pairs // ITEMS, pairs % ITEMS
    tastes, kinds = (torch.randn(n, RANK, generator=draw) for n in (USERS, ITEMS))
    mild, liked = (torch.randn(n, generator=draw) for n in (USERS, ITEMS))
    product = (tastes[user] * kinds[item]).sum(1) / math.sqrt(RANK)
    signal = math.sqrt(0.5) * product + 0.5 * mild[user] + 0.5 * liked[item]
    ratings = signal + NOISE * torch.randn(count, generator=draw)
    inputs = torch.stack([user, item], 1)
    return Task(
        Factors,
        (inputs[:TRAINED], ratings[:TRAINED]),
        (inputs[TRAINED:], ratings[TRAINED:]),
        loss=mse_loss,
        correct=None,
    )


class Factors(nn.Module):
    """(user, item) (N, 2) → their ratings (N,)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)
        self.user_biases, self.item_biases = nn.Embedding(USERS, 1), nn.Embedding(ITEMS, 1)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.user_biases, self.item_biases):
            nn.init.zeros_(table.weight)

    def forward(self, pairs: Tensor) -> Tensor:
        """Inner products and biases."""
        user, item = pairs.unbind(1)
        product = (self.users(user) * self.items(item)).sum(1, keepdim=True)
        ratings: Tensor = product + self.user_biases(user) + self.item_biases(item)
        return ratings.squeeze(1)
