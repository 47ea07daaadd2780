"""The small tables with which some experiments answer their question."""

from __future__ import annotations

from collections.abc import Sequence

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.verdicts import TABLES
from cgqbench.output.against_tuned import against_tuned
from cgqbench.output.at_equal_work import at_equal_work
from cgqbench.output.beside_paper import beside_paper, how_far
from cgqbench.output.table import Table
from cgqbench.output.what_died import what_died
from cgqbench.output.zoo.methods import zoo_methods
from cgqbench.output.zoo.start import zoo_start


def answers(compared: Sequence[Comparison]) -> list[Table]:
    """Those for which there are records."""
    questions = against_tuned, what_died, zoo_methods, zoo_start
    found = [
        how_far(compared),
        *(beside_paper(compared, table) for table in TABLES),
        *at_equal_work(compared),
        *(question(compared) for question in questions),
    ]
    return [table for table in found if table is not None]
