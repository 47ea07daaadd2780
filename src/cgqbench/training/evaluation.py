"""How good the weights are: loss and accuracy on the test data."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import update_bn

from cgqbench.records.record import Line
from cgqbench.tasks.seeds import seed_everything
from cgqbench.tasks.task import Task
from cgqbench.training.feed import Feed
from cgqbench.training.learner import Learner
from cgqbench.training.meter import finite

# Batches that re-estimate BatchNorm's statistics for averaged weights.
SAMPLE = 30


def evaluated(learner: Learner, epoch: int) -> Line:
    """Loss and accuracy on the test data, of the running weights and of their average."""
    task, feed = learner.task, learner.feed
    with learner.arithmetic.other_passes(), evaluation_mode(learner.optimizer) as modes:
        model = learner.model
        if modes:  # these are other weights than those whose statistics BatchNorm has seen
            model = copy.deepcopy(model)
            update_bn(feed.sample(SAMPLE, epoch), model)
        loss, accuracy = on_test_data(model, task, feed)
    average_loss = average_accuracy = None
    if learner.averaged is not None:
        with learner.arithmetic.other_passes():
            update_bn(feed.sample(SAMPLE, epoch), learner.averaged)
            average_loss, average_accuracy = on_test_data(learner.averaged, task, feed)
    return {
        "test_loss": loss,
        "test_accuracy": accuracy,
        "average_test_loss": average_loss,
        "average_test_accuracy": average_accuracy,
    }


@torch.no_grad()
def on_test_data(model: nn.Module, task: Task, feed: Feed) -> tuple[float | None, float | None]:
    """Mean loss and accuracy in percent on the test data; accuracy only of classifications."""
    model.eval()
    seed_everything(0)  # what a model draws even now, as a VAE does, is the same for all weights
    loss = hits = answers = examples = 0.0
    for inputs, targets in feed.test():
        output = model(inputs)
        loss += task.loss(output, targets).item() * (1 if task.summed else len(targets))
        examples += len(targets)
        if task.correct is not None:
            right = task.correct(output, targets)
            hits += right.sum().item()
            answers += right.numel()
    model.train()
    return finite(loss / examples), 100.0 * hits / answers if answers else None


@contextmanager
def evaluation_mode(optimizer: Optimizer) -> Iterator[bool]:
    """Show the weights that an optimizer with modes (Schedule-Free) wants evaluated, if it has."""
    modes = callable(getattr(optimizer, "eval", None)) and callable(
        getattr(optimizer, "train", None)
    )
    if modes:
        optimizer.eval()  # type: ignore[attr-defined]
    try:
        yield modes
    finally:
        if modes:
            optimizer.train()  # type: ignore[attr-defined]


def all_finite(model: nn.Module) -> bool:
    """Whether every parameter is a finite number."""
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())
