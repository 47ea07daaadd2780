"""What to run first where time is scarce."""

from __future__ import annotations

from collections.abc import Sequence

from cgqbench.experiments.cell import Cell

COLUMNS = (
    # VGG-16 is quick, and the one network on all three data sets.
    ("svhn", "vgg16"),
    ("cifar10", "vgg16"),
    ("cifar100", "vgg16"),
    # Then one deep network on each of two.
    ("cifar10", "resnet164"),
    ("svhn", "resnet110"),
)
"""(dataset, network), the most worth first; the others follow in the order of their table."""

METHODS = ("sgd", "cgq", "scgq", "sgd_cosine", "search")
"""The paper's question first: its method beside SGD. The others follow in their own order."""


def by_worth(cells: Sequence[Cell]) -> list[Cell]:
    """Cells in order of worth: seed by seed, column by column, method by method.

    >>> from cgqbench.experiments import EXPERIMENTS
    >>> cells = by_worth(EXPERIMENTS["table2"].cells(seeds=2))
    >>> [cell.name for cell in cells[:3]]
    ['cifar10-vgg16-sgd-0', 'cifar10-vgg16-cgq-0', 'cifar10-vgg16-scgq-0']
    """
    columns = list(dict.fromkeys((*COLUMNS, *((cell.dataset, cell.network) for cell in cells))))
    methods = list(dict.fromkeys((*METHODS, *(cell.method for cell in cells))))

    def place(cell: Cell) -> tuple[int, int, int]:
        column = columns.index((cell.dataset, cell.network))
        return cell.seed, column, methods.index(cell.method)

    return sorted(cells, key=place)
