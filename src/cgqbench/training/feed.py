"""Batches of a task: whole tensors on the training device, seeded, without worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Generator, Tensor

from cgqbench.tasks.seeds import derived
from cgqbench.tasks.task import Task

Batch = tuple[Tensor, Tensor]

# Batches made in one go: enough to spread the cost of the small operations that make a batch,
# little enough to stay in memory next to any network.
CHUNK = 32


class Feed:
    """The training and test batches of a task on a device.

    The order is drawn on the host and is the same on every device; each epoch draws its own from
    the seed and its number, so there is no state to save.
    """

    def __init__(self, task: Task, device: torch.device, batch_size: int, seed: int) -> None:
        self._task = task
        self._device = device
        self._batch_size = batch_size
        self._seed = seed
        self._inputs, self._targets = (tensor.to(device) for tensor in task.train)
        self._epoch_size = min(task.epoch_size or len(self._inputs), len(self._inputs))
        self._test_inputs, self._test_targets = (tensor.to(device) for tensor in task.test)

    def __len__(self) -> int:
        return -(-self._epoch_size // self._batch_size)

    def epoch(self, epoch: int, purpose: str = "order") -> Iterator[Batch]:
        """Training examples, none twice, in an order of its own; the last batch may be short."""
        seed = derived(self._seed, purpose, epoch)
        order = torch.randperm(len(self._inputs), generator=Generator().manual_seed(seed))
        order = order[: self._epoch_size]
        augmentation = Generator(self._device).manual_seed(derived(seed, "augmentation"))
        for rows in torch.split(order.to(self._device), CHUNK * self._batch_size):
            inputs = self._inputs[rows]
            if self._task.augmented is not None:
                inputs = self._task.augmented(inputs, augmentation)
            yield from zip(
                torch.split(self._task.prepared(inputs), self._batch_size),
                torch.split(self._targets[rows], self._batch_size),
                strict=True,
            )

    def sample(self, batches: int, epoch: int) -> Iterator[Batch]:
        """Some training batches in an order that training does not see."""
        return islice(self.epoch(epoch, "sample"), batches)

    def test(self, batch_size: int = 1000) -> Iterator[Batch]:
        """The test examples in order."""
        for inputs, targets in zip(
            torch.split(self._test_inputs, batch_size),
            torch.split(self._test_targets, batch_size),
            strict=True,
        ):
            yield self._task.prepared(inputs), targets.clone()  # which a loss may write to
