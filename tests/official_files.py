"""Small data sets in the official formats, random but the same every time."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.io import savemat

from cgqbench.tasks.data.image_sets import SOURCES, Part, Source

Bytes = NDArray[np.uint8]
TRAIN, TEST = 20, 10


def arrays(name: str, split: str) -> tuple[Bytes, Bytes]:
    """Images (N, C, H, W) and labels."""
    chance = np.random.default_rng([ord(letter) for letter in name + split])
    count = TRAIN if split == "train" else TEST
    shape = (1, 28, 28) if "mnist" in name else (3, 32, 32)
    images = chance.integers(0, 256, (count, *shape), dtype=np.uint8)
    return images, chance.integers(0, SOURCES[name].classes, count, dtype=np.uint8)


def small(name: str) -> Source:
    """The source of that name, expecting the small arrays."""
    parts = {}
    for split, part in (("train", SOURCES[name].train), ("test", SOURCES[name].test)):
        images, labels = arrays(name, split)
        pixels = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).tobytes()
        parts[split] = Part(part.files, len(labels), digest(pixels), digest(labels.tobytes()))
    return replace(SOURCES[name], **parts)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def contents(name: str) -> dict[str, bytes]:
    """Path below the data folder → bytes."""
    files: dict[str, bytes] = {}
    for split in ("train", "test"):
        images, labels = arrays(name, split)
        paths = getattr(SOURCES[name], split).files
        if name == "fashion_mnist":
            files[paths[0] + ".gz"] = gzip.compress(idx(images[:, 0]), mtime=0)
            files[paths[1] + ".gz"] = gzip.compress(idx(labels), mtime=0)
        elif name == "svhn":
            X, y = images.transpose(2, 3, 1, 0), np.where(labels == 0, 10, labels)[:, None]
            stream = io.BytesIO()
            savemat(stream, {"X": X, "y": y}, do_compression=True)
            files[paths[0]] = stream.getvalue()
        else:
            columns = [labels[:, None], images.reshape(len(labels), -1)]
            if name == "cifar100":
                columns.insert(0, labels[:, None] // 5)
            for path, rows in zip(
                paths, np.split(np.concatenate(columns, 1), len(paths)), strict=True
            ):
                files[path] = rows.tobytes()
    return files


def idx(array: Bytes) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


def write(name: str, folder: Path) -> None:
    for path, content in contents(name).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def tar(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()
