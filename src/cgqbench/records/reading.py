"""Records read back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cgqbench.records.record import DAMAGED, Line, RecordError, parsed, times_of

# By the kind of a line, what it cannot be without; no line has what is unknown.
REQUIRED = {
    "cell": {"experiment", "dataset", "network", "method", "seed", "epochs"},
    "epoch": {"epoch"},
    "end": {"status"},
}
UNKNOWN = {""}


@dataclass(frozen=True)
class Run:
    """A record read back: what tables, figures and the report are made from."""

    path: Path
    header: Line
    epochs: list[Line]
    end: Line | None
    times: list[Line] = field(default_factory=list)

    @property
    def diverged(self) -> bool:
        """Whether the run ended early: its loss was not finite, or its network dead for good."""
        return self.end is not None and self.end["status"] == "diverged"


def runs(folder: Path) -> list[Run]:
    """Every record below a folder, in order of path; unfinished ones too."""
    paths = [
        path
        for path in sorted(folder.rglob("*.jsonl"))
        if not path.name.endswith((".times.jsonl", ".landscape.jsonl"))
    ]
    return [run for run in map(read_run, paths) if run is not None]


def read_run(path: Path) -> Run | None:
    """One record; None while it is empty, or if the file is something else."""
    lines = parsed(path, DAMAGED)
    if not lines or not isinstance(lines[0], dict) or lines[0].get("kind") != "cell":
        return None
    for number, line in enumerate(lines, 1):
        if not isinstance(line, dict) or not REQUIRED.get(line.get("kind", ""), UNKNOWN) <= {*line}:
            raise RecordError(f"{path}, line {number}, is no line of a record. {DAMAGED}")
    times = times_of(path)
    return Run(
        path,
        lines[0],
        [line for line in lines if line["kind"] == "epoch"],
        lines[-1] if lines[-1]["kind"] == "end" else None,
        parsed(times, DAMAGED) if times.exists() else [],
    )
