"""The source of Python's standard library: a text that every machine with this package has."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable
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


def standard_library(
    root: Path | None = None,
    tests: int | None = None,
    length: int = LENGTH,
    part: Callable[[bytes], bytes] = bytes,
) -> Text:
    """The standard library of the running Python, whole files for training or for testing.

    About a tenth of the files are for testing, chosen by their names alone.

    Args:
        root: Its folder, if not the running Python's.
        tests: Windows to test on; None: 1,000.
        length: Characters that a model sees at once.
        part: What of a file to keep, such as its `docstrings`.

    Raises:
        MissingData: The folder has too little source.
    """
    train, test = plain_texts(root, part, length)
    return Text.of(train, test, TESTS if tests is None else tests, length)


def plain_texts(
    root: Path | None = None, part: Callable[[bytes], bytes] = bytes, least: int = LENGTH
) -> tuple[bytes, bytes]:
    """What of it is trained on and what is tested on, each longer than `least`.

    Raises:
        MissingData: The folder has too little source.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    parts: tuple[list[bytes], list[bytes]] = [], []
    for name in sources(root):
        parts[for_testing(name)].append(part((root / name).read_bytes()))
    train, test = (b"\n".join(texts) for texts in parts)
    if min(len(train), len(test)) <= least:
        raise MissingData(
            f"{STDLIB} is not complete: {root} holds too few source files of Python's standard "
            "library. Use an installation of Python that has its .py files."
        )
    return train, test


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


def docstrings(source: bytes) -> bytes:
    """What stands between triple quotes, its lines without their indentation: mostly English.

    >>> quotes = 3 * b'"'
    >>> docstrings(b"def f(): " + quotes + b" Say hello. " + quotes + b" return 1")
    b'Say hello.'
    """
    lines = b"\n".join(source.split(b'"""')[1::2]).splitlines()
    return b"\n".join(line.strip() for line in lines)


def code(source: bytes) -> bytes:
    """What stands outside of them: programs and their comments.

    >>> quotes = 3 * b'"'
    >>> code(b"def f(): " + quotes + b" Say hello. " + quotes + b"return 1")
    b'def f(): return 1'
    """
    return b"".join(source.split(b'"""')[::2])


def for_testing(name: str) -> bool:
    """Whether a file is kept from training.

    >>> for_testing("heapq.py"), for_testing("base64.py")
    (False, True)
    """
    return hashlib.blake2b(name.encode(), digest_size=1).digest()[0] % 10 == 0
