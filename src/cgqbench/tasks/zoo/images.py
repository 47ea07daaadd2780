"""Pictures in classes: a small convnet, a mixer, a ResNet without BatchNorm, a ViT, a VGG-16."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from cgqbench.tasks.data import Dataset, Split, load
from cgqbench.tasks.data.images import cropped_and_flipped, normalised
from cgqbench.tasks.networks import network
from cgqbench.tasks.networks.convnet import convnet as convnet_network
from cgqbench.tasks.networks.initial import kaiming_normal
from cgqbench.tasks.networks.mixer import Mixer
from cgqbench.tasks.networks.resnet import resnet
from cgqbench.tasks.networks.vit import ViT
from cgqbench.tasks.task import Task

TRAINED, TESTED = 12_000, 5_000
"""Images of MNIST to train on, and of any set to test on."""
GROUPS = 8
SHAPE, CLASSES = (3, 32, 32), 10


def convnet() -> Task:
    """MNIST, with dropout."""
    data = load("mnist")
    return pictures(data, convnet_network, first(data.train, TRAINED))


def mixer() -> Task:
    """MNIST, with nothing but layers across places and across channels."""
    data = load("mnist")
    return pictures(data, partial(Mixer, patch=7, width=64, layers=4), first(data.train, TRAINED))


def resnet_gn() -> Task:
    """CIFAR-10, with GroupNorm in the place of BatchNorm."""
    return pictures(load("cifar10"), resnet_with_group_norm)


def vit() -> Task:
    """CIFAR-10."""
    return pictures(load("cifar10"), partial(ViT, patch=4, width=128, layers=6, heads=4))


def vgg_svhn() -> Task:
    """SVHN, without any normalisation: known to die at its start."""
    return pictures(load("svhn"), partial(network, "vgg16", SHAPE, CLASSES))


def resnet_with_group_norm() -> nn.Module:
    """ResNet-20."""
    return kaiming_normal(resnet(20, SHAPE, CLASSES, partial(nn.GroupNorm, GROUPS)))


def pictures(data: Dataset, model: Callable[[], nn.Module], train: Split | None = None) -> Task:
    """A data set with a network, or some of it; few images to test on, so that it is quick."""
    return Task(
        model,
        train or data.train,
        first(data.test, TESTED),
        prepared=partial(normalised, mean=data.mean, std=data.std),
        augmented=cropped_and_flipped if data.augment else None,
        channels_last=True,
    )


def first(split: Split, count: int) -> Split:
    """The first of some images."""
    return Split(split.images[:count], split.labels[:count])
