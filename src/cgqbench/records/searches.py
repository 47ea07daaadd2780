"""Landscape files read back: the loss along the lines that a run searched."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from cgqbench.records.problem import label_of, problem_of
from cgqbench.records.record import Line, parsed


@dataclass(frozen=True)
class Searches:
    """What one landscape file holds: its cell and the searches that were looked at."""

    path: Path
    title: str
    """Unlike that of any other file below the same folder."""
    header: Line
    lines: list[Line]


def searches(folder: Path) -> list[Searches]:
    """Every landscape file below a folder that holds a search, in order of path."""
    read = [_read(path) for path in sorted(folder.rglob("*.landscape.jsonl"))]
    found = [one for one in read if one is not None and one.lines]
    titles = Counter(one.title for one in found)
    return [one if titles[one.title] == 1 else _told_apart(one, folder) for one in found]


def _read(path: Path) -> Searches | None:
    lines = parsed(path, "Remove the file, or make it again with `cgq landscape`.")
    if not lines:
        return None
    header = lines[0]
    title = f"{problem_of(header).title}, {label_of(header)}, seed {header['seed']}"
    return Searches(path, title, header, [line for line in lines[1:] if _whole(line)])


def _told_apart(one: Searches, folder: Path) -> Searches:
    place = one.path.relative_to(folder).as_posix().removesuffix(".landscape.jsonl")
    return replace(one, title=f"{one.title}, {place}")


def _whole(line: Line) -> bool:
    """Whether it is a search with all that is drawn of it: what was not finite is null."""
    return line["kind"] == "landscape" and all(
        line[name] is not None for name in ("loss", "slope", "step_size")
    )
