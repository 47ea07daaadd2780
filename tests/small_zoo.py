"""The zoo without downloads, and with little training in advance."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from cgqbench.tasks.data import Dataset, Split, load
from cgqbench.tasks.zoo import adapters, images, new_digits, pretraining


def made_up(name: str) -> Dataset:
    """MNIST as it is; of the others some noise in their shape."""
    if name == "mnist":
        return load(name)
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (300, 3, 32, 32), generator=draw, dtype=torch.uint8)
    split = Split(pixels, torch.arange(300) % 10)
    return Dataset(name, split, split, 10, (0.5,) * 3, (0.25,) * 3, augment=name == "cifar10")


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Put made-up images in the place of downloads, and two steps in that of hundreds."""
    patch.setattr(images, "load", made_up)
    brief = partial(_brief, pretraining.pretrained)
    for module, trained in (
        (adapters, adapters._trained_on_code),
        (new_digits, new_digits._trained_on_other_digits),
    ):
        patch.setattr(module, "pretrained", brief)
        trained.cache_clear()


def _brief(pretrained, make, task, batch_size, steps, lr):  # type: ignore[no-untyped-def]
    return pretrained(make, task, batch_size, 2, lr)
