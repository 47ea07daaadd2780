"""Append-only records: what a cell was, one line for each epoch, how it ended.

A cell has three files: `NAME.jsonl`, which depends on nothing but the cell, the machine and the
versions, so that an interrupted and resumed run leaves the same bytes as one in a single go;
`NAME.times.jsonl`, the seconds each epoch took; and `NAME.ckpt`, maybe in parts, while it is
unfinished.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cgqbench.records.checkpoint import Checkpoint

try:
    import fcntl
except ImportError:  # no such thing on Windows: two runs of one cell are not kept apart there
    fcntl = None  # type: ignore[assignment]

Line = dict[str, Any]

DAMAGED = "Remove the file to run the cell again."


class RecordError(RuntimeError):
    """A record that cannot be used as asked; the message names the cure."""


class Record:
    """A cell's record, held by one process at a time.

    Every line is on the disk before `append` returns, and a line torn by a crash is cut off when
    the record is opened again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        hold(self._file, path)
        _cut_torn_tail(self._file)
        self.lines = parsed(path, DAMAGED)

    @property
    def header(self) -> Line | None:
        """The first line, which says what the cell is; None in a new record."""
        return self.lines[0] if self.lines else None

    @property
    def epochs(self) -> int:
        """How many epochs are recorded."""
        return sum(line["kind"] == "epoch" for line in self.lines)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return bool(self.lines) and self.lines[-1]["kind"] == "end"

    @property
    def checkpoint(self) -> Checkpoint:
        """The state of its last epoch or of one before, which is kept while it is unfinished."""
        return Checkpoint(self.path.with_suffix(".ckpt"))

    def append(self, line: Line) -> None:
        """Write a line, to the disk itself."""
        append(self._file, line)
        self.lines.append(line)

    @property
    def times(self) -> list[Line]:
        """The lines about seconds, an epoch each."""
        path = times_of(self.path)
        return parsed(path, DAMAGED) if path.exists() else []

    def append_time(self, line: Line) -> None:
        """Write a line about seconds, which differ from run to run, next to the record."""
        path = times_of(self.path)
        with path.open("a+b") as file:
            _cut_torn_tail(file)
            append(file, line)

    def cut(self, epochs: int) -> None:
        """Forget what came after so many epochs, the times first: then a second cut finds them."""
        kept = sum(line["epoch"] <= epochs for line in self.times)
        with times_of(self.path).open("a+b") as file:
            _cut(file, kept)
        _cut(self._file, 1 + epochs)
        self.lines = self.lines[: 1 + epochs]

    def restart(self) -> None:
        """Forget everything."""
        self._file.truncate(0)
        self.lines = []
        self.checkpoint.remove()
        times_of(self.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def times_of(path: Path) -> Path:
    """The file of seconds that lies next to a record."""
    return path.with_suffix(".times.jsonl")


def hold(file: Any, path: Path) -> None:
    """Keep other processes from a record for as long as `file` is open."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RecordError(
            f"{path} is being written by another process. Wait for it, stop it, or choose "
            "another folder with --out."
        ) from None


def append(file: Any, line: Line) -> None:
    """Write a line, to the disk itself."""
    # JSON knows no NaN: what is not finite is written as null by whoever makes the line.
    file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def _cut_torn_tail(file: Any) -> None:
    file.seek(0)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        file.truncate(whole)


def _cut(file: Any, lines: int) -> None:
    file.seek(0)
    file.truncate(sum(map(len, file.readlines()[:lines])))


def parsed(path: Path, cure: str) -> list[Line]:
    """The whole lines of a file; `cure` says what to do about one that is not JSON."""
    content = path.read_bytes()
    lines = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:  # which bytes that are no text raise too
            raise RecordError(f"{path}, line {number}, is not JSON ({error}). {cure}") from None
    return lines
