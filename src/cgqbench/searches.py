"""Landscape files read back: the loss along the lines that a run searched."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cgqbench.record import Line, RecordError


@dataclass(frozen=True)
class Searches:
    """What one landscape file holds: its cell and the searches that were looked at."""

    path: Path
    header: Line
    lines: list[Line]


def searches(folder: Path) -> list[Searches]:
    """Every landscape file below a folder that holds a search, in order of path."""
    found = [_read(path) for path in sorted(folder.rglob("*.landscape.jsonl"))]
    return [one for one in found if one is not None and one.lines]


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
    return Searches(path, lines[0], [line for line in lines if line["kind"] == "landscape"])
