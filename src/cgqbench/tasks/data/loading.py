"""Data sets from disk to memory, their content verified."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from cgqbench.tasks.data.dataset import DamagedData, Dataset, MissingData, Split
from cgqbench.tasks.data.folder import data_folder
from cgqbench.tasks.data.formats import Bytes
from cgqbench.tasks.data.image_sets import Part, Source, source

_PACKAGE = Path(__file__).parent


def load(name: str, folder: Path | None = None) -> Dataset:
    """The data set of that name, from `folder` (default: `data_folder()`).

    Args:
        name: One of `NAMES`; "mnist" ships inside this package and needs no folder.
        folder: Where the official files lie, in their official layout.

    Raises:
        MissingData: A file is not there.
        DamagedData: A file does not hold the official images and labels.

    >>> mnist = load("mnist")
    >>> mnist.train.images.shape, mnist.test.labels[:5].tolist()
    (torch.Size([60000, 1, 28, 28]), [7, 2, 1, 0, 4])
    """
    return dataset(source(name), folder or data_folder())


def dataset(origin: Source, folder: Path) -> Dataset:
    """What `origin` describes, from a folder."""
    try:
        train, test = (_split(origin, part, folder) for part in (origin.train, origin.test))
    except DamagedData as error:
        raise DamagedData(f"{error} {_cure(origin)}") from error
    return Dataset(
        origin.name, train, test, origin.classes, origin.mean, origin.std, origin.augment
    )


def paths(origin: Source, folder: Path) -> list[Path]:
    """The files of a data set, all of them present."""
    return [_path(origin, file, folder) for file in origin.train.files + origin.test.files]


def _split(origin: Source, part: Part, folder: Path) -> Split:
    files = [_path(origin, file, folder) for file in part.files]
    images, labels = origin.reader(files)
    named = ", ".join(map(str, files))
    if not len(images) == len(labels) == part.count:
        raise DamagedData(
            f"{named}: {len(images):,} images and {len(labels):,} labels; "
            f"expected {part.count:,} of each."
        )
    # The hashes are those of (N, H, W, C), the order in which the sets are usually published.
    if _digest(images.transpose(0, 2, 3, 1)) != part.pixels or _digest(labels) != part.labels:
        raise DamagedData(f"{named}: not the images and labels published as {origin.name}.")
    # torch wants memory it may write to; frombuffer's is read-only.
    return Split(torch.tensor(images), torch.tensor(labels, dtype=torch.int64))


def _path(origin: Source, file: str, folder: Path) -> Path:
    root = folder if origin.archives else _PACKAGE
    # What a download replaces comes first, so that one always cures a damaged file.
    for ending in (".gz", ".xz", ""):
        path = root / (file + ending)
        if path.is_file():
            return path
    raise MissingData(f"{origin.name} is not complete: {file} is not in {root}. {_cure(origin)}")


def _cure(origin: Source) -> str:
    if origin.archives:
        return f"To download it: cgq data get {origin.name}"
    return 'It ships with the package; to restore it: pip install --force-reinstall "cgq[bench]"'


def _digest(array: Bytes) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()[:16]
