"""All that the records below a folder say, read once and handed to tables, page and plots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cgqbench.analysis.comparison import Comparison, comparisons
from cgqbench.records.reading import Run, runs
from cgqbench.records.record import RecordError
from cgqbench.records.searches import Searches, searches


@dataclass(frozen=True)
class Findings:
    """The runs, which of them may stand side by side, and the lines that were searched."""

    runs: list[Run]
    comparisons: list[Comparison]
    searches: list[Searches]


def findings(folder: Path) -> Findings:
    """What there is below a folder; there must be something."""
    found, lines = runs(folder), searches(folder)
    if not found and not lines:
        raise RecordError(
            f"{folder} holds no records. Make some with `cgq compare --out {folder}`, or name the "
            "folder that a run wrote to."
        )
    return Findings(found, comparisons(found), lines)
