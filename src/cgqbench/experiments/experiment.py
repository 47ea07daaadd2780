"""An experiment: every method on every column, as cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from cgqbench.experiments.cell import Cell
from cgqbench.experiments.paper import BATCH_SIZE


@dataclass(frozen=True)
class Column:
    """A network on a data set, with its budget of epochs."""

    dataset: str
    network: str
    epochs: int
    batch_size: int = BATCH_SIZE
    part: str = ""
    """Of the experiment, if it has parts."""


@dataclass(frozen=True)
class Experiment:
    """An item of the paper, or one beside it: every method on every column."""

    name: str
    title: str
    columns: tuple[Column, ...]
    methods: tuple[str, ...]

    def cells(
        self, seeds: int, only: Sequence[str] = (), epochs: int | None = None, average: bool = True
    ) -> list[Cell]:
        """Its cells, seed by seed so that a stopped run has compared like with like.

        `only` keeps what is named by data set, network, part or method; of each kind that is named,
        at least one must match. A method's name without its settings stands for all that have it,
        unless there is one without settings.

        >>> from cgqbench.experiments import EXPERIMENTS
        >>> len(EXPERIMENTS["table1"].cells(seeds=3, only=["mnist"]))
        30
        """
        datasets, networks, parts, methods = self._chosen(only)
        cells = [
            Cell(
                self.name,
                column.dataset,
                column.network,
                method,
                seed,
                epochs or column.epochs,
                column.batch_size,
                average,
            )
            for seed, column, method in product(range(seeds), self.columns, self.methods)
            if column.dataset in datasets
            and column.network in networks
            and column.part in parts
            and method in methods
        ]
        if not cells:
            columns = ", ".join(
                f"{column.dataset} with {column.network}" for column in self.columns
            )
            raise ValueError(f"{self.name} has no such column. It has: {columns}.")
        return cells

    def _chosen(self, only: Sequence[str]) -> list[set[str]]:
        kinds = (
            {column.dataset for column in self.columns},
            {column.network for column in self.columns},
            {column.part for column in self.columns},
            set(self.methods),
        )
        families: dict[str, set[str]] = {}
        for method in self.methods:
            families.setdefault(method.partition(":")[0], set()).add(method)
        wanted: set[str] = set()
        for name in only:
            exact = name != "" and any(name in kind for kind in kinds)
            if not exact and name not in families:
                known = sorted({*kinds[0], *kinds[1], *kinds[2], *families} - {""})
                raise ValueError(
                    f"{self.name} has no {name!r}. Choose from: {', '.join(known)}, "
                    "or a method with its settings."
                )
            wanted |= {name} if exact else families[name]
        return [(kind & wanted) or kind for kind in kinds]
