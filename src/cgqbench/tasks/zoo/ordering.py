"""A sequence to a sequence: numbers are read in any order and written in theirs."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from cgqbench.tasks.task import Task

TRAINED, TESTED = 60_000, 4_000
LENGTH, NUMBERS = 16, 100
START = NUMBERS
"""What stands before the first number that is written."""


def sorting() -> Task:
    """Each number to write is predicted from those to sort and those already written."""
    draw = Generator().manual_seed(7)
    numbers = torch.randint(NUMBERS, (TRAINED + TESTED, LENGTH), generator=draw)
    ordered = numbers.sort(1).values
    written = torch.cat([torch.full((len(numbers), 1), START), ordered[:, :-1]], 1)
    inputs = torch.stack([numbers, written], 1)
    return Task(
        Sorter,
        (inputs[:TRAINED], ordered[:TRAINED]),
        (inputs[TRAINED:], ordered[TRAINED:]),
    )


class Sorter(nn.Module):
    """What to sort and what is written (N, 2, T) → the logits of what to write, (N, numbers, T).

    A GRU reads, another writes; its every state looks back at all states of the first.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.numbers = nn.Embedding(NUMBERS + 1, width)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.writer = nn.GRU(width, width, batch_first=True)
        self.query = nn.Linear(width, width, bias=False)
        self.joined = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, NUMBERS)

    def forward(self, sequences: Tensor) -> Tensor:
        """The writer begins in the state in which the reader ended."""
        to_sort, written = self.numbers(sequences).unbind(1)
        read, last = self.reader(to_sort)
        states, _ = self.writer(written, last)
        seen = scaled_dot_product_attention(self.query(states), read, read)
        logits: Tensor = self.head(torch.tanh(self.joined(torch.cat([states, seen], 2))))
        return logits.transpose(1, 2)
