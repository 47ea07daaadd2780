"""The tasks that have names: a data set with a network."""

from __future__ import annotations

from functools import partial

from torch import Tensor
from torch.nn.functional import cross_entropy

from cgqbench.tasks.data import STDLIB, load, standard_library
from cgqbench.tasks.data.images import cropped_and_flipped, normalised
from cgqbench.tasks.data.text import LENGTH, VOCABULARY
from cgqbench.tasks.networks import language_model, network
from cgqbench.tasks.task import Task

WINDOWS = 8000
"""Of text, in an epoch: 250 batches of 32, a million characters."""


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

    >>> import torch
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
