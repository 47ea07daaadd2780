"""What a data set is once it is in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Split(NamedTuple):
    """Images, uint8 (N, C, H, W), and their labels, int64 (N,)."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Dataset:
    """A whole data set, and how its pixels are meant to be prepared."""

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    """Of each channel, subtracted from pixel / 255."""
    std: tuple[float, ...]
    """Of each channel; what is left is divided by it."""
    augment: bool
    """Whether training crops and flips the images at random."""


class MissingData(FileNotFoundError):  # noqa: N818
    """A data set is not on this machine; the message names the command that brings it."""


class DamagedData(ValueError):  # noqa: N818
    """A file does not hold what it should; the message names it and the cure."""
