"""Weights to start from, trained in the same run: quickly, and alike in every process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from cgqbench.tasks.task import Task

Network = TypeVar("Network", bound=nn.Module)


def pretrained(
    make: Callable[[], Network], task: Task, batch_size: int, steps: int, lr: float
) -> Network:
    """The network after some steps of AdamW on a task's data, on the host.

    Nothing else is drawn from or changed.
    """
    with _alone():
        model = make().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr)
        inputs, targets = task.train
        for _ in range(steps):
            rows = torch.randint(len(inputs), (batch_size,))
            optimizer.zero_grad()
            loss = task.loss(model(task.prepared(inputs[rows])), targets[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return model


@contextmanager
def _alone() -> Iterator[None]:
    """One thread and a generator of its own: with more, the sums would be rounded otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.default_generator.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(threads)
