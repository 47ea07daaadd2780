"""A cell: one training run, named by everything that decides its outcome."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from cgqbench.experiments.paper import BATCH_SIZE
from cgqbench.tasks.named import by_name
from cgqbench.tasks.task import Task
from cgqbench.tasks.task_file import from_file

LONGEST = 150


@dataclass(frozen=True)
class Cell:
    """One run: (experiment, dataset, network, method, seed) and its budget.

    >>> cell = Cell("table1", "mnist", "mlp", "scgq:search_prob=0.3", seed=2, epochs=20)
    >>> cell.name
    'mnist-mlp-scgq_search_prob=0.3-2'
    """

    experiment: str
    dataset: str
    network: str
    method: str
    seed: int
    epochs: int
    batch_size: int = BATCH_SIZE
    average: bool = True
    task: str | None = None
    """A file of the user's own that takes the place of dataset and network."""

    @property
    def name(self) -> str:
        """What its files are called."""
        parts = f"{self.dataset}-{self.network}-{self.method}"
        if len(parts) > LONGEST:  # a file's name may have 255 bytes, and four to a letter
            digest = hashlib.blake2b(parts.encode(), digest_size=6).hexdigest()
            parts = f"{parts[:LONGEST]}-{digest}"
        return re.sub(r"[^\w.=,+-]", "_", f"{parts}-{self.seed}", flags=re.ASCII)


def task_of(cell: Cell) -> Task:
    """The task that a cell trains."""
    return from_file(Path(cell.task)) if cell.task else by_name(cell.dataset, cell.network)
