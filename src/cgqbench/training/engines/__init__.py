"""Where cells run. An engine takes cells and yields what happens to them, as it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cgqbench.experiments.cell import Cell
from cgqbench.training.engines.events import Ended, Event, Started
from cgqbench.training.engines.local import local
from cgqbench.training.engines.ray_cluster import ray_cluster
from cgqbench.training.runner import Conditions

Engine = Callable[[Sequence[Cell], Conditions, int], Iterator[Event]]

ENGINES: dict[str, Engine] = {"local": local, "ray": ray_cluster}

__all__ = ["ENGINES", "Ended", "Engine", "Event", "Started"]
