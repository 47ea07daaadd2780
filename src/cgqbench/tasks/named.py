"""The tasks that have names: a data set with a network."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from cgqbench.tasks.data import STDLIB, load, standard_library
from cgqbench.tasks.data.images import cropped_and_flipped, normalised
from cgqbench.tasks.data.text import LENGTH, VOCABULARY
from cgqbench.tasks.networks import language_model, network
from cgqbench.tasks.task import Task, per_character
from cgqbench.tasks.zoo import ZOO, zoo_task

WINDOWS = 8000
"""Of text, in an epoch: 250 batches of 32, a million characters."""


def by_name(dataset: str, network_name: str) -> Task:
    """A data set with a network, both of those that have names here."""
    if dataset == STDLIB:
        return _language_task(network_name)
    if dataset == ZOO:
        return zoo_task(network_name)
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
