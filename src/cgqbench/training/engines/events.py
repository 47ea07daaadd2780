"""What an engine says of a cell."""

from __future__ import annotations

from typing import NamedTuple

from cgqbench.experiments.cell import Cell
from cgqbench.records.record import Line
from cgqbench.training.meter import BatchProgress


class Started(NamedTuple):
    """A cell has begun."""


class Ended(NamedTuple):
    """A cell is over; `error` says why if it failed, `out_of_time` that more of it is left."""

    error: str | None = None
    out_of_time: bool = False


class Event(NamedTuple):
    """Something happened to a cell: it started, a batch, a row of its record, it ended."""

    cell: Cell
    news: Started | BatchProgress | Line | Ended
