"""The safety experiment's question: does anything die?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cgqbench.analysis.chance import MARGIN, chance_loss, dead
from cgqbench.analysis.comparison import Comparison, several
from cgqbench.analysis.measures import shown_loss, shown_with_spread
from cgqbench.analysis.spread import statistic
from cgqbench.output.table import Column, Table, TableCell, plain_row
from cgqbench.records.reading import Run

EXPERIMENT = "safety"
COLUMNS = ("problem", "method", "first epoch", "last epoch", "guessing", "died")


def what_died(compared: Sequence[Comparison]) -> Table | None:
    """Each network and method: train loss at the start and the end, and how many seeds died.

    None without that experiment.
    """
    rows = [
        row
        for comparison in compared
        if comparison.problem.experiment == EXPERIMENT
        for row in _rows(comparison)
    ]
    if not rows:
        return None
    return Table(
        "What died",
        tuple(map(Column, COLUMNS)),
        tuple(rows),
        "Mean train loss of the epoch, ± standard deviation over seeds. Guessing: the entropy of "
        "the labels, for text ln of the number of characters. Died: diverged, or none of the last "
        "epoch's losses, of the train set and of the test set by final and averaged weights, is "
        f"{100 * MARGIN:g} % below guessing.",
    )


def _rows(comparison: Comparison) -> Iterator[tuple[TableCell, ...]]:
    for method, group in comparison.methods.items():
        chance = chance_loss(group[0].header)
        ended = [run for run in group if run.end is not None]
        died = f"{sum(map(dead, ended))} of {len(ended)}"
        if len(ended) < len(group):
            died += f", {several(len(group) - len(ended), 'seed')} unfinished"
        yield plain_row(
            f"{comparison.name}, {several(comparison.problem.epochs, 'epoch')}",
            comparison.labels[method],
            _loss(group, 0),
            _loss(ended, -1),
            "?" if chance is None else shown_loss(chance),
            died,
        )


def _loss(group: Sequence[Run], epoch: int) -> str:
    found = statistic([run.epochs[epoch].get("train_loss") for run in group if run.epochs])
    return "–" if found is None else shown_with_spread("train_loss", found)
