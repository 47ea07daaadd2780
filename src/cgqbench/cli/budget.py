"""A budget of time: how it is written, how it is shown, and what it has left undone."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from cgqbench.experiments.cell import Cell
from cgqbench.records.checkpoint import Checkpoint
from cgqbench.records.identity import record_path
from cgqbench.records.reading import Run, read_run

TOO_SHORT = (
    "No epoch came to its end in this budget, so nothing of it is kept. Give it more time or, if "
    "runs shared the machine, fewer --jobs."
)
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """The seconds that a budget means.

    >>> seconds_of("25m"), seconds_of("1.5h"), seconds_of("90s"), seconds_of("90")
    (1500.0, 5400.0, 90.0, 90.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text, flags=re.ASCII)
    seconds = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not seconds:
        raise ValueError(
            f"{text!r} is no budget of time. Write a number above 0 and its unit: --budget 90s, "
            "--budget 25m or --budget 1h."
        )
    return seconds


def clock(seconds: float) -> str:
    """Seconds as a clock shows them, never below zero.

    >>> clock(754.9), clock(3725), clock(-3)
    ('12:34', '1:02:05', '0:00')
    """
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def reached(cells: Sequence[Cell], records: Path) -> tuple[int, int]:
    """The epochs of all these cells that will not be trained again, and the cells at their end."""
    found = _found(cells, records)
    return sum(map(_kept, found)), sum(map(_ended, found))


def what_is_left(cells: Sequence[Cell], records: Path) -> str | None:
    """In words, the cells that are not at their end; None if all are."""
    found = _found(cells, records)
    going = [(cell, run) for cell, run in zip(cells, found, strict=True) if not _ended(run)]
    if not going:
        return None
    begun = sum(_kept(run) > 0 for _, run in going)
    epochs = sum(cell.epochs - _kept(run) for cell, run in going)
    return (
        f"Of {len(cells):,} runs {len(going):,} are left, {begun:,} of them begun, with {epochs:,} "
        "epochs in all"
    )


def _found(cells: Sequence[Cell], records: Path) -> list[Run | None]:
    paths = [record_path(cell, records) for cell in cells]
    return [read_run(path) if path.exists() else None for path in paths]


def _ended(run: Run | None) -> bool:
    return run is not None and run.end is not None


def _kept(run: Run | None) -> int:
    """The epochs that will not come again: a killed run goes on from its last checkpoint."""
    if run is None:
        return 0
    reached = None if run.end else Checkpoint(run.path.with_suffix(".ckpt")).epoch
    return len(run.epochs) if reached is None else reached


def going_on() -> str:
    """The command that goes on, which is the same one; only it must not begin again."""
    return shlex.join(["cgq", *(word for word in sys.argv[1:] if word != "--restart")])
