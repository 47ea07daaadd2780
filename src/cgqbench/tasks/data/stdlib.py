"""The source of Python's standard library: a text that every machine with this package has."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from pathlib import Path

from cgqbench.tasks.data.dataset import MissingData
from cgqbench.tasks.data.text import LENGTH, Text

STDLIB = "stdlib"
TESTS = 1000
"""Windows to test on: 128,000 characters."""

# Distributions leave these out or ship them apart, or a release has dropped them; tests are no
# part of every installation; encodings and pydoc_data are tables, not programs.
_LEFT_OUT = frozenset(
    {
        *("distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo", "venv"),
        *("test", "tests", "encodings", "pydoc_data", "__pycache__"),
    }
)
# Written by the installation, with paths of its machine.
_MADE_HERE = ("_sysconfigdata", "sitecustomize", "usercustomize")


def standard_library(root: Path | None = None) -> Text:
    """The standard library of the running Python, whole files for training or for testing.

    About a tenth of the files are for testing, chosen by their names alone.

    Args:
        root: Its folder, if not the running Python's.

    Raises:
        MissingData: The folder has too little source.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    parts: tuple[list[bytes], list[bytes]] = [], []
    for name in sources(root):
        parts[for_testing(name)].append((root / name).read_bytes())
    train, test = (b"\n".join(part) for part in parts)
    if min(len(train), len(test)) <= LENGTH:
        raise MissingData(
            f"{STDLIB} is not complete: {root} holds too few source files of Python's standard "
            "library. Use an installation of Python that has its .py files."
        )
    return Text.of(train, test, TESTS)


def sources(root: Path) -> list[str]:
    """The paths of the source files below a folder, in order, on every system alike."""
    found = []
    for folder, packages, files in os.walk(root):
        # A package's name is an identifier; site-packages and config-3.12-… are none.
        packages[:] = [name for name in packages if name.isidentifier() and name not in _LEFT_OUT]
        found += [
            (Path(folder) / name).relative_to(root).as_posix()
            for name in files
            if name.endswith(".py") and not name.startswith(_MADE_HERE)
        ]
    return sorted(found)


def for_testing(name: str) -> bool:
    """Whether a file is kept from training.

    >>> for_testing("heapq.py"), for_testing("base64.py")
    (False, True)
    """
    return hashlib.blake2b(name.encode(), digest_size=1).digest()[0] % 10 == 0
