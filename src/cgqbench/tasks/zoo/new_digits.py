"""Fine-tuning of all weights: from the digits 0 to 4 to a few examples of 5 to 9."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache, partial

from torch import nn

from cgqbench.tasks.data import Split, load
from cgqbench.tasks.networks.convnet import WIDTH, convnet
from cgqbench.tasks.task import Task
from cgqbench.tasks.zoo.images import TRAINED, first, pictures
from cgqbench.tasks.zoo.pretraining import pretrained

CLASSES = 5
FEW = 640


def finetune() -> Task:
    """The convnet with a new head."""
    data = load("mnist")
    new = replace(data, train=later_half(data.train), test=later_half(data.test))
    return pictures(new, retrained, first(new.train, FEW))


def retrained() -> nn.Module:
    """What was trained on other digits, with a head that was not."""
    model = copy.deepcopy(_trained_on_other_digits())
    model[-1] = nn.Linear(WIDTH, CLASSES)
    return model


def later_half(split: Split) -> Split:
    """The digits 5 to 9, called 0 to 4."""
    kept = split.labels >= CLASSES
    return Split(split.images[kept], split.labels[kept] - CLASSES)


def earlier_half(split: Split) -> Split:
    """The digits 0 to 4."""
    kept = split.labels < CLASSES
    return Split(split.images[kept], split.labels[kept])


@cache
def _trained_on_other_digits() -> nn.Sequential:
    data = load("mnist")
    make = partial(convnet, CLASSES)
    task = pictures(data, make, first(earlier_half(data.train), TRAINED))
    return pretrained(make, task, 64, steps=200, lr=1e-3)
