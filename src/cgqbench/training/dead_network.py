"""Whether a network is dead for good: then no further epoch can change what it answers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from cgqbench.tasks.seeds import seed_everything
from cgqbench.training.feed import Batch
from cgqbench.training.learner import Learner


def first_weights(model: nn.Module) -> Tensor:
    """A copy of the first parameter that is trained, which modules list inputs first.

    >>> first_weights(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))).shape
    torch.Size([3, 2])
    """
    return next(each for each in model.parameters() if each.requires_grad).detach().clone()


def dead_since(before: Tensor, learner: Learner) -> bool:
    """Whether nothing went through the network in an epoch that found its first weights `before`.

        w = w_before, bit for bit, and f(x) = f(x') for all test inputs x and x'

    No batch of the epoch had a gradient for w, and what comes out does not depend on what goes in:
    somewhere every rectifier is dark, and nothing trains what feeds it. Weight decay moves w, so
    that under it no network is called dead; it may come back.
    """
    if not torch.equal(before, first_weights(learner.model)):
        return False
    with learner.arithmetic.other_passes():
        return one_answer(learner.model, learner.feed.test())


@torch.no_grad()
def one_answer(model: nn.Module, batches: Iterable[Batch]) -> bool:
    """Whether a model answers all inputs, of which there are several, alike up to rounding.

    >>> dark = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> batches = [(torch.randn(4, 2), torch.zeros(4, 1))]
    >>> one_answer(dark, batches)
    False
    >>> _ = nn.init.constant_(dark[0].bias, -100.0)
    >>> one_answer(dark, batches)
    True
    """
    model.eval()
    seed_everything(0)  # as in a test: what a model draws even now is the same for all weights
    first, count = None, 0
    try:
        for inputs, _ in batches:
            answers = model(inputs)
            if not isinstance(answers, Tensor) or not answers.dim():
                return False
            first = answers[:1] if first is None else first
            if not torch.allclose(answers, first.expand_as(answers), atol=0.0):
                return False
            count += len(answers)
    finally:
        model.train()
    return count > 1
