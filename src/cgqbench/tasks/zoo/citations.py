"""A graph network on a made-up graph of papers that cite each other."""

from __future__ import annotations

from functools import partial

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import dropout, one_hot, relu

from cgqbench.tasks.task import Task

NODES, CLASSES, WORDS = 1_050, 7, 300
LABELLED = 20
"""Papers of each class whose class is known."""
TESTED = 500
WITHIN, BETWEEN = 0.02, 0.0015
"""The probabilities that two papers of one class, or of two, cite each other."""
LENGTH = 10
"""Words of a paper, about; a third of them are of its class."""
STEPS = 20


def gcn() -> Task:
    """The whole graph is one example, shown again in every step; a batch is one example."""
    draw = Generator().manual_seed(2)
    labels = torch.arange(NODES) % CLASSES
    graph = neighbours(labels, draw)
    words = bags(labels, draw)
    known = torch.arange(LABELLED * CLASSES)
    tested = torch.arange(NODES - TESTED, NODES)
    return Task(
        partial(GCN, graph, words),
        (known.repeat(STEPS, 1), labels[known].repeat(STEPS, 1)),
        (tested[None], labels[tested][None]),
    )


class GCN(nn.Module):
    """Indices of nodes (1, K) → the logits of their classes, (1, classes, K).

    Â·relu(Â·X·V)·W, as Kipf and Welling have it; half the hidden units drop out. The graph and its
    words are constants of the network.
    """

    def __init__(self, graph: Tensor, words: Tensor, hidden: int = 16) -> None:
        super().__init__()
        self.graph: Tensor
        self.spread: Tensor
        self.register_buffer("graph", graph)
        self.register_buffer("spread", graph @ words)
        self.first = nn.Linear(words.shape[1], hidden)
        self.second = nn.Linear(hidden, CLASSES)

    def forward(self, nodes: Tensor) -> Tensor:
        """All nodes are computed, some are returned."""
        hidden = dropout(relu(self.first(self.spread)), training=self.training)
        logits: Tensor = self.graph @ self.second(hidden)
        return logits[nodes].transpose(1, 2)


def neighbours(labels: Tensor, draw: Generator) -> Tensor:
    """A graph with more edges within a class, as Â = D^-½ (A + I) D^-½."""
    alike = labels[:, None] == labels
    chance = torch.where(alike, WITHIN, BETWEEN)
    half = torch.rand(chance.shape, generator=draw).less(chance).triu(1)
    edges = (half | half.T).float() + torch.eye(len(labels))
    scale = edges.sum(1).rsqrt()
    return scale[:, None] * edges * scale


def bags(labels: Tensor, draw: Generator) -> Tensor:
    """Which words a paper has, divided by their number; each class has words of its own."""
    common = torch.full((len(labels), WORDS), 2 / 3 * LENGTH / WORDS)
    topics = one_hot(torch.arange(WORDS) % CLASSES, CLASSES)[:, labels].T
    chance = common + topics * LENGTH * CLASSES / WORDS / 3
    found = torch.rand(chance.shape, generator=draw).less(chance).float()
    return found / found.sum(1, keepdim=True).clamp(min=1)
