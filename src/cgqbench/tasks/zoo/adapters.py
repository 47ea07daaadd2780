"""Fine-tuning by low-rank adapters: from programs to the English of their docstrings."""

from __future__ import annotations

import copy
import math
from functools import cache, partial

import torch
from torch import Tensor, nn

from cgqbench.tasks.data.stdlib import code, docstrings
from cgqbench.tasks.data.text import VOCABULARY
from cgqbench.tasks.networks.gpt import GPT, Block
from cgqbench.tasks.task import Task
from cgqbench.tasks.zoo.pretraining import pretrained
from cgqbench.tasks.zoo.text import characters, library

LENGTH, RANK = 64, 4
SCALE = 2.0
"""The factor of what an adapter adds."""


def lora() -> Task:
    """A GPT of two layers whose own weights stay as they were."""
    return characters(adapted, library(LENGTH, docstrings))


def adapted() -> nn.Module:
    """The trained network, frozen, with an adapter on every layer of its blocks."""
    model = copy.deepcopy(_trained_on_code()).requires_grad_(False)
    for block in model.modules():
        if isinstance(block, Block):
            for owner, name in (
                (block.attention, "into"),
                (block.attention, "out"),
                (block, "wide"),
                (block, "narrow"),
            ):
                setattr(owner, name, Adapter(getattr(owner, name)))
    return model


class Adapter(nn.Module):
    """W·x + s·B·A·x: W is frozen, A (rank, inner) is drawn, B (outer, rank) starts at zero."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Parameter(torch.empty(RANK, frozen.in_features))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, RANK))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's answer and the adapter's."""
        out: Tensor = self.frozen(x) + SCALE * (x @ self.down.T @ self.up.T)
        return out


@cache
def _trained_on_code() -> nn.Module:
    make = partial(GPT, VOCABULARY, LENGTH, width=64, layers=2, heads=4)
    return pretrained(make, characters(make, library(LENGTH, code)), 16, steps=400, lr=3e-3)
