"""Which record is a cell's, and what tells it from another of the same name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from cgqbench.experiments.cell import Cell
from cgqbench.methods import chosen
from cgqbench.records.record import Line, RecordError
from cgqbench.tasks.task import Task

# What may differ between the run that began a cell and the one that continues it. A task is
# known by its checksum, wherever its file lies.
INCIDENTAL = ("command", "task")
RESTART = "Add --restart to begin again."


def record_path(cell: Cell, records: Path) -> Path:
    """Where a cell's record is."""
    return records / cell.experiment / f"{cell.name}.jsonl"


def identity_of(cell: Cell, task: Task) -> Line:
    """What tells a cell from any other."""
    settings = chosen(cell.method, cell.network).settings
    return {**asdict(cell), "settings": settings, "checksum": task.checksum}


def refuse_differences(path: Path, found: Line, wanted: Line, cure: str = RESTART) -> None:
    """Raise if a file's first line says otherwise than `wanted`, in what is not incidental."""
    if found.get("device") == "cpu":  # older records do not say it
        found = {"arithmetic": "float32", **found}
    differing = [
        f"{key} {found.get(key)!r}, not {value!r}"
        for key, value in wanted.items()
        if key not in INCIDENTAL and found.get(key) != value
    ]
    if differing:
        raise RecordError(
            f"{path} was made with {'; '.join(differing)}. {cure} Or choose another folder with "
            "--out."
        )
