"""Landscape files read back: the loss along the lines that a run searched."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cgqbench.comparison import label_of, problem_of
from cgqbench.record import Line, RecordError


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
    return [
        one
        if titles[one.title] == 1
        else replace(one, title=f"{one.title}, {_within(folder, one.path)}")
        for one in found
    ]


def roughness(line: Line) -> float:
    """How far the loss along a line is from any parabola: 0 is a parabola, 1 is nothing like one.

    The root of the share of the variance that the best parabola leaves unexplained.

    >>> grid = [0.0, 0.1, 0.2, 0.3, 0.4]
    >>> round(roughness({"grid": grid, "losses": [(x - 0.2) ** 2 for x in grid]}), 6)
    0.0
    """
    pairs = [pair for pair in zip(line["grid"], line["losses"], strict=True) if None not in pair]
    if len(pairs) < 4:
        return math.inf
    steps, losses = np.array(pairs, dtype=float).T
    spread = float(np.square(losses - losses.mean()).sum())
    if spread == 0.0:
        return 0.0
    # Scaled to [0, 1], so that the fit is as well posed for a tiny step as for a large one.
    scaled = steps / np.abs(steps).max()
    residual = losses - np.polyval(np.polyfit(scaled, losses, 2), scaled)
    return math.sqrt(float(np.square(residual).sum()) / spread)


def vertices(line: Line) -> list[float]:
    """The least losses of the parabolas fitted to a line, as far as they lie within its grid.

    For a·α² + b·α + c with a > 0 that is c - b²/(4a), at α = -b/(2a).

    >>> vertices({"grid": [0.0, 0.5], "two_point": [1.0, -0.5, 0.2], "least_squares": None})
    [0.1375]
    """
    fits = [line[key] for key in ("two_point", "least_squares") if line[key] is not None]
    return [
        c - b * b / (4 * a)
        for a, b, c in fits
        if a > 0 and min(line["grid"]) <= -b / (2 * a) <= max(line["grid"])
    ]


def _read(path: Path) -> Searches | None:
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1].splitlines()
    try:
        lines = [json.loads(line) for line in whole]
    except json.JSONDecodeError as error:
        raise RecordError(
            f"{path} is not a landscape file ({error}). Remove it, or make it again with "
            "`cgq landscape`."
        ) from None
    if not lines:
        return None
    header = lines[0]
    title = f"{problem_of(header).title}, {label_of(header)}, seed {header['seed']}"
    return Searches(path, title, header, [line for line in lines[1:] if _whole(line)])


def _within(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix().removesuffix(".landscape.jsonl")


def _whole(line: Line) -> bool:
    """Whether it is a search with all that is drawn of it: what was not finite is null."""
    return line["kind"] == "landscape" and None not in (
        line["loss"],
        line["slope"],
        line["step_size"],
    )
