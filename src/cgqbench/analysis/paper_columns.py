"""The columns of the paper's tables, with two of today's methods beside the paper's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cgqbench.analysis.comparison import Comparison
from cgqbench.experiments import paper

TODAY = {"table1": "today1", "table2": "today2"}
"""The paper's tables, and the experiments that have the same columns for today's methods."""


def paper_columns(compared: Sequence[Comparison]) -> list[Comparison]:
    """Those of them that were begun, each with what is beside it and was run as long."""
    known = {one.problem: one for one in compared}
    found = []
    for one in compared:
        if one.problem.experiment not in TODAY:
            continue
        today = known.get(replace(one.problem, experiment=TODAY[one.problem.experiment]))
        found.append(one if today is None else _with(one, today))
    return found


def _with(column: Comparison, today: Comparison) -> Comparison:
    beside = [method for method in paper.BESIDE if method in today.methods]
    return replace(
        column,
        methods={**column.methods, **{method: today.methods[method] for method in beside}},
        labels={**column.labels, **{method: today.labels[method] for method in beside}},
    )
