"""What is trained: a model, its data and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from cgqbench.cell import Cell
from cgqbench.data import STDLIB, load, standard_library
from cgqbench.data.images import cropped_and_flipped, normalised
from cgqbench.data.text import LENGTH, VOCABULARY
from cgqbench.networks import language_model, network

Loss = Callable[[Tensor, Tensor], Tensor]

WINDOWS = 8000
"""Of text, in an epoch: 250 batches of 32, a million characters."""


def right_classes(output: Tensor, target: Tensor) -> Tensor:
    """Which answers are right, of an output (N, C, …) that the cross-entropy takes.

    Targets below zero are those it ignores.

    >>> output = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]])
    >>> right_classes(output, torch.tensor([1, 1, -100]))
    tensor([ True, False])
    """
    return (output.argmax(1) == target)[target >= 0]


@dataclass(frozen=True)
class Task:
    """A model, training and test data as whole tensors, and the loss between output and target."""

    model: Callable[[], nn.Module]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    loss: Loss = cross_entropy
    correct: Loss | None = right_classes
    """Which answers are right, as a tensor of truth values; None: this is no classification."""
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


def task_of(cell: Cell) -> Task:
    """The task that a cell trains."""
    from cgqbench.task_file import from_file  # which is made of what is above

    return from_file(Path(cell.task)) if cell.task else by_name(cell.dataset, cell.network)


def by_name(dataset: str, network_name: str) -> Task:
    """A data set with a network, both of those that have names here."""
    if dataset == STDLIB:
        return _language_task(network_name)
    data = load(dataset)
    channels, height, width = data.train.images.shape[1:]
    return Task(
        partial(network, network_name, (channels, height, width), data.classes),
        data.train,
        data.test,
        prepared=partial(normalised, mean=data.mean, std=data.std),
        augmented=cropped_and_flipped if data.augment else None,
        channels_last=True,
    )


def per_character(output: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of a language model's (N, T, vocabulary), in nats a character.

    >>> per_character(torch.zeros(2, 3, 97), torch.zeros(2, 3, dtype=torch.uint8))
    tensor(4.5747)
    """
    return cross_entropy(output.flatten(0, 1), target.flatten().long())


def _language_task(network_name: str) -> Task:
    """The standard library with a language model; it is judged by its test loss alone."""
    text = standard_library()
    return Task(
        partial(language_model, network_name, VOCABULARY, LENGTH),
        (text.train[:, :-1], text.train[:, 1:]),
        (text.test[:, :-1], text.test[:, 1:]),
        loss=per_character,
        correct=None,
        prepared=Tensor.long,
        epoch_size=WINDOWS,
        checksum=text.checksum,
    )
