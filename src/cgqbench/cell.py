"""A cell: one training run, named by everything that decides its outcome."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any


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
    batch_size: int = 64
    average: bool = True
    task: str | None = None
    """A file of the user's own that takes the place of dataset and network."""

    @property
    def name(self) -> str:
        """What its files are called."""
        parts = f"{self.dataset}-{self.network}-{self.method}-{self.seed}"
        return re.sub(r"[^\w.=,+-]", "_", parts)

    def as_dict(self) -> dict[str, Any]:
        """Its fields, as a record's first line holds them."""
        return asdict(self)
