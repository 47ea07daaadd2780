"""Readers of the official file formats: paths → images (N, C, H, W) and labels (N,), both uint8.

Nothing is unpickled: these formats hold numbers only.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cgqbench.tasks.data.dataset import DamagedData

Bytes = NDArray[np.uint8]
Reader = Callable[[Sequence[Path]], tuple[Bytes, Bytes]]

_DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}
_SIDE, _PIXELS = 32, 3 * 32 * 32


def idx(paths: Sequence[Path]) -> tuple[Bytes, Bytes]:
    """MNIST's format: a file of images and a file of labels, as they are or in gzip or xz."""
    images, labels = paths
    return _idx_array(images, 3)[:, None], _idx_array(labels, 1)


def cifar10(paths: Sequence[Path]) -> tuple[Bytes, Bytes]:
    """Rows of a label and the red, green and blue planes."""
    return _cifar(paths, labels_per_row=1)


def cifar100(paths: Sequence[Path]) -> tuple[Bytes, Bytes]:
    """Rows of a coarse label (left out), a fine label and the red, green and blue planes."""
    return _cifar(paths, labels_per_row=2)


def svhn(paths: Sequence[Path]) -> tuple[Bytes, Bytes]:
    """A MATLAB file of X (H, W, C, N) and y (N, 1), in which the digit 0 is written 10."""
    from scipy.io import loadmat

    (path,) = paths
    try:
        content = loadmat(path, variable_names=("X", "y"))
        images, labels = content["X"], content["y"].ravel()
    except Exception as error:  # on a damaged file scipy raises nearly anything
        raise DamagedData(
            f"{path} is not a whole MATLAB file of X and y ({type(error).__name__}: {error})."
        ) from error
    if images.shape != (_SIDE, _SIDE, 3, labels.size) or images.dtype != np.uint8:
        raise DamagedData(
            f"{path} holds X of shape {images.shape} and type {images.dtype}; expected uint8 of "
            f"shape ({_SIDE}, {_SIDE}, 3, {labels.size}), an image for each label."
        )
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), (labels % 10).astype(np.uint8)


def _idx_array(path: Path, dimensions: int) -> Bytes:
    content = path.read_bytes()
    try:
        content = _DECOMPRESS.get(path.suffix, bytes)(content)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise DamagedData(f"{path} cannot be decompressed ({error}).") from error
    # Two zero bytes, 8 for unsigned bytes, the number of dimensions, then the dimensions.
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise DamagedData(f"{path} is not an idx file of {dimensions} dimensions of bytes.")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4))
    if len(content) != start + prod(shape):
        raise DamagedData(
            f"{path} holds {len(content):,} bytes; its own header promises {start + prod(shape):,}."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _cifar(paths: Sequence[Path], labels_per_row: int) -> tuple[Bytes, Bytes]:
    rows = np.concatenate([_rows(path, labels_per_row + _PIXELS) for path in paths])
    images = np.ascontiguousarray(rows[:, labels_per_row:]).reshape(-1, 3, _SIDE, _SIDE)
    return images, rows[:, labels_per_row - 1].copy()


def _rows(path: Path, width: int) -> Bytes:
    content = np.fromfile(path, np.uint8)
    if not content.size or content.size % width:
        raise DamagedData(
            f"{path} holds {content.size:,} bytes, which is no whole number of images "
            f"of {width:,} bytes."
        )
    return content.reshape(-1, width)
