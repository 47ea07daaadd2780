"""Official archives: downloaded, resumed where they stopped, verified, unpacked."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from cgqbench.tasks.data.dataset import DamagedData, MissingData
from cgqbench.tasks.data.folder import data_folder
from cgqbench.tasks.data.image_sets import Archive, Source, source
from cgqbench.tasks.data.loading import dataset, paths
from cgqbench.tasks.data.resume import resumed


class DownloadError(OSError):
    """A download did not end well; the message says what to do."""


def fetch(name: str, folder: Path | None = None, progress: bool = True) -> list[Path]:
    """The files of a data set, downloaded into `folder` unless they are there and intact.

    Args:
        name: One of `NAMES`.
        folder: Where they go (default: `data_folder()`).
        progress: Whether to show a bar on standard error.

    Raises:
        DownloadError: No connection, or not the official file; what has arrived is kept.

    >>> [path.name for path in fetch("mnist")][0]
    'train-images-idx3-ubyte.xz'
    """
    return fetched(source(name), folder or data_folder(), progress)


def fetched(origin: Source, folder: Path, progress: bool) -> list[Path]:
    """The files of `origin`, downloaded where needed."""
    if origin.archives and not _intact(origin, folder):
        for archive in origin.archives:
            _bring(archive, origin.name, folder, progress)
        dataset(origin, folder)
    return paths(origin, folder)


def _intact(origin: Source, folder: Path) -> bool:
    try:
        dataset(origin, folder)
    except (MissingData, DamagedData):
        return False
    return True


def _bring(archive: Archive, name: str, folder: Path, progress: bool) -> None:
    import pooch
    import requests

    path = folder / archive.path
    try:
        pooch.retrieve(
            archive.url,
            f"md5:{archive.md5}",
            fname=path.name,
            path=path.parent,
            downloader=_downloader(path.with_name(path.name + ".part"), progress),
        )
    except requests.RequestException as error:
        raise DownloadError(
            f"{archive.url} did not arrive ({error}). What did is kept; to go on from there: "
            f"cgq data get {name}. Or put the official files into {folder} yourself."
        ) from error
    except ValueError as error:  # what pooch raises for a wrong checksum; it removes the file
        raise DownloadError(
            f"{archive.url} arrived, but not with the md5 {archive.md5}, and was removed. To try "
            f"again: cgq data get {name}. Or put the official files into {folder} yourself."
        ) from error
    if archive.members:
        _unpack(path, archive.members, folder)
        path.unlink()


def _downloader(part: Path, progress: bool) -> Callable[[str, str, object], None]:
    """What pooch calls to fill its temporary file, by way of one that outlives an interruption."""

    def download(url: str, output: str, _: object) -> None:
        resumed(url, part, progress)
        os.replace(part, output)

    return download


def _unpack(path: Path, members: tuple[str, ...], folder: Path) -> None:
    """Take the named files out of a tar file, nothing else, each whole or not at all."""
    with tarfile.open(path, "r:gz") as tar:
        for name in members:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(target.name + ".part")
            with _member(tar, name) as content, part.open("wb") as file:
                shutil.copyfileobj(content, file)
            os.replace(part, target)


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    content = tar.extractfile(name) if name in tar.getnames() else None
    if content is None:
        raise DamagedData(f"{tar.name!s} holds no file {name}.")
    return content
