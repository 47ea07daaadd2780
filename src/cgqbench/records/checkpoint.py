"""The state of an unfinished run: numbered parts, and an index with their checksums.

No file is larger than `LIMIT`, so that a folder of records can be carried wherever large files are
not welcome. The bytes are those of `torch.save`; nothing is rounded or left out.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import torch

LIMIT = 16 * 2**20
"""The most bytes of a file."""


class CheckpointError(RuntimeError):
    """Files that do not belong together, or not all of them."""


class Checkpoint:
    """A checkpoint that is replaced as a whole.

    A set of parts has a number of its own. The index, which is `path` itself, names one set and
    takes its place in a single move once all of it is on the disk: whatever interrupts the writing,
    the index names a whole set, the one before or the new one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Whether there is one."""
        return self.path.exists()

    @property
    def epoch(self) -> int | None:
        """The epoch it is of; None where there is none, or it does not say."""
        try:
            epoch: int | None = self._index()["epoch"]
        except (OSError, CheckpointError):
            return None
        return epoch

    def save(self, content: Any, epoch: int) -> None:
        """Put a checkpoint in the place of the last one in a single, durable move."""
        number = 1 + self._last_set()
        with _Parts(lambda part: self._part(number, part)) as parts:
            _save(content, parts)
        with self._draft.open("wb") as file:
            index = {"set": number, "parts": parts.checksums, "epoch": epoch}
            file.write(json.dumps(index).encode())
            _settle(file)
        os.replace(self._draft, self.path)
        self._remove_parts(but=number)

    def load(self, place: torch.device) -> Any:
        """What was saved, with its tensors at `place`; only numbers and plain containers."""
        index = self._index()
        whole = BytesIO(b"".join(self._joined(index["set"], index["parts"])))
        return torch.load(whole, weights_only=True, map_location=place)

    def remove(self) -> None:
        """Remove all of it, the index first: parts alone are nothing."""
        self.path.unlink(missing_ok=True)
        self._draft.unlink(missing_ok=True)
        self._remove_parts(but=None)

    @property
    def _draft(self) -> Path:
        return self.path.with_name(f"{self.path.name}.draft")

    def _part(self, number: int, part: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}-{part:03}")

    def _last_set(self) -> int:
        """The number of the set that must stay whole meanwhile; 0 where there is none."""
        try:
            number: int = self._index()["set"]
        except (FileNotFoundError, CheckpointError):  # or what is there is no checkpoint
            return 0
        return number

    def _index(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_bytes())
            number, checksums = int(found["set"]), [int(each) for each in found["parts"]]
            epoch = found.get("epoch")
            epoch = None if epoch is None else int(epoch)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise CheckpointError("it is no index of parts, as this version writes it") from error
        return {"set": number, "parts": checksums, "epoch": epoch}

    def _joined(self, number: int, checksums: list[int]) -> Iterator[bytes]:
        for part, checksum in enumerate(checksums, 1):
            path = self._part(number, part)
            content = path.read_bytes() if path.exists() else b""
            if zlib.crc32(content) != checksum:
                raise CheckpointError(f"{path} is missing, or not the one that was written")
            yield content

    def _remove_parts(self, but: int | None) -> None:
        for path in self.path.parent.glob(f"{self.path.name}.*-*"):
            if but is None or not path.name.startswith(f"{self.path.name}.{but}-"):
                path.unlink(missing_ok=True)


class _Parts:
    """A file to write to, cut into parts as it grows, so that it is never in memory as a whole."""

    def __init__(self, path_of: Callable[[int], Path]) -> None:
        self.checksums: list[int] = []
        self._path_of = path_of
        self._files: list[BinaryIO] = []
        self._room = 0

    def write(self, data: Any) -> int:
        """Write bytes to the running part and, where it is full, to the next."""
        left = memoryview(data).cast("B")
        while left:
            if not self._room:
                self.checksums.append(0)
                self._files.append(self._path_of(len(self.checksums)).open("wb"))
                self._room = LIMIT
            piece, left = left[: self._room], left[self._room :]
            self._files[-1].write(piece)
            self.checksums[-1] = zlib.crc32(piece, self.checksums[-1])
            self._room -= len(piece)
        return len(data)

    def flush(self) -> None:
        """Nothing: the parts are settled at the end, together."""

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as opened:
            for file in self._files:
                opened.enter_context(file)
            for file in self._files:
                _settle(file)


def _save(content: Any, parts: _Parts) -> None:
    try:
        torch.save(content, parts)  # type: ignore[arg-type] # it needs write and flush
    except RuntimeError as error:
        # Where writing ends early, torch complains of the place in the file instead.
        if isinstance(error.__context__, KeyboardInterrupt | SystemExit | OSError):
            raise error.__context__ from None
        raise


def _settle(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
