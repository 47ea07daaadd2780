"""The small tables with which some experiments answer their question."""

from __future__ import annotations

from collections.abc import Sequence

from cgqbench.analysis.comparison import Comparison
from cgqbench.output.against_tuned import against_tuned
from cgqbench.output.table import Table
from cgqbench.output.what_died import what_died


def answers(compared: Sequence[Comparison]) -> list[Table]:
    """Those for which there are records."""
    found = (against_tuned(compared), what_died(compared))
    return [table for table in found if table is not None]
