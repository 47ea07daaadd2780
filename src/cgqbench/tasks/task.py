"""A task: a model, its data and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

Loss = Callable[[Any, Tensor], Tensor]
"""What a model returns, maybe several tensors, and the targets → a number or one each."""


class TaskError(ValueError):
    """A task that cannot be used; the message names the cure."""


def right_classes(output: Tensor, target: Tensor) -> Tensor:
    """Which answers are right, of an output (N, C, …) that the cross-entropy takes.

    Targets below zero are those it ignores.

    >>> output = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]])
    >>> right_classes(output, torch.tensor([1, 1, -100]))
    tensor([ True, False])
    """
    return (output.argmax(1) == target)[target >= 0]


def per_character(output: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of a language model's (N, T, vocabulary), in nats a character.

    >>> per_character(torch.zeros(2, 3, 97), torch.zeros(2, 3, dtype=torch.uint8))
    tensor(4.5747)
    """
    return cross_entropy(output.flatten(0, 1), target.flatten().long())


@dataclass(frozen=True)
class Task:
    """A model, training and test data as whole tensors, and the loss between output and target."""

    model: Callable[[], nn.Module]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    loss: Loss = cross_entropy
    correct: Loss | None = right_classes
    """Which answers are right, as a tensor of truth values; None: this is no classification."""
    summed: bool = False
    """Whether the loss of a batch is the sum over its examples, not their mean."""
    prepared: Callable[[Tensor], Tensor] = torch.clone
    """From what the data hold to what the model takes: normalisation."""
    augmented: Callable[[Tensor, Generator], Tensor] | None = None
    """A random change of training inputs, before they are prepared."""
    epoch_size: int | None = None
    """Training examples that an epoch draws, none twice; None: all there are."""
    channels_last: bool = False
    """Whether the model takes images in channels-last memory, which GPUs like better."""
    checksum: str | None = None
    """What tells it from another of the same name, where a name is not enough."""
