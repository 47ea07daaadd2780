"""The small tables that the records of some experiments answer their question with."""

from __future__ import annotations

from collections.abc import Sequence

from cgqbench.analysis.comparison import Comparison
from cgqbench.output.against_tuned import against_tuned
from cgqbench.output.deaths import deaths
from cgqbench.output.listing import Listing


def answers(compared: Sequence[Comparison]) -> list[Listing]:
    """Those for which there are records."""
    found = (against_tuned(compared), deaths(compared))
    return [listing for listing in found if listing is not None]
