"""The loop: one `step(closure)` for every method and every batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cgqbench.records.record import Line
from cgqbench.tasks.seeds import derived, seed_everything
from cgqbench.tasks.task import TaskError
from cgqbench.training.learner import Learner
from cgqbench.training.meter import BatchProgress, Meter

# Seconds between two looks at a running epoch; each costs a synchronisation on a GPU.
PATIENCE = 0.25

Watch = Callable[[BatchProgress], None]


def train_epoch(learner: Learner, epoch: int, watch: Watch) -> Line:
    """Train for one epoch; what it came to, as part of a record's row.

    Everything random in an epoch starts from the seed and the epoch's number, so that a run
    continues from a checkpoint exactly as it would have gone on.
    """
    seed_everything(derived(learner.cell.seed, "noise", epoch))
    model, optimizer, feed = learner.model, learner.optimizer, learner.feed
    model.train()
    meter = Meter(len(feed))
    next_look = time.monotonic() + PATIENCE
    for batch, (inputs, targets) in enumerate(feed.epoch(epoch), 1):
        versions = inputs._version, targets._version
        closure = learner.closure(inputs, targets)
        loss: Any = optimizer.step(closure)  # type: ignore[arg-type]
        if (inputs._version, targets._version) != versions:
            raise TaskError(
                "The model or the loss changes its inputs or targets in place, so no second look "
                "at a batch can be trusted. Use operations without a trailing underscore on them."
            )
        meter.add(loss, optimizer)
        if learner.scheduler is not None:
            learner.scheduler.step()
        if learner.averaged is not None:
            learner.averaged.update_parameters(model)
        if time.monotonic() > next_look:
            watch(meter.progress(epoch, batch, len(feed)))
            next_look = time.monotonic() + PATIENCE
    return meter.row(optimizer)
