"""The cells of the paper's tables: its value, ours as the records have it, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from cgqbench.analysis.chance import dead
from cgqbench.analysis.comparison import Comparison, fewer_bits
from cgqbench.analysis.measures import ACCURACY
from cgqbench.analysis.standings import CLOSE_ACCURACY
from cgqbench.analysis.summary import Entry, counted, summary
from cgqbench.experiments import EXPERIMENTS, paper

TABLES = ("table1", "table2")
"""The experiments that are the paper's tables."""

RULE = (
    f"Reproduced: our mean test accuracy after the paper's number of epochs is within "
    f"{CLOSE_ACCURACY:g} points of the paper's value, or within our standard deviation over seeds "
    "where that is more; better and worse lie beyond. The paper gives one number without a spread, "
    "and seeds differ by tenths of a point. Where the paper's does not converge (–), ours "
    "reproduces it if a seed died, and is better if none did; where only ours dies it is worse"
)
"""The rule in words, beside `_judged`, which follows it."""


class Verdict(Enum):
    """What is said of a cell, in the order of tables."""

    REPRODUCED = "reproduced"
    BETTER = "better"
    WORSE = "worse"
    NONE = "no verdict"
    """It was run for another number of epochs than the paper's, or in other batches."""
    UNFINISHED = "unfinished"
    NOT_RUN = "not yet run"


@dataclass(frozen=True)
class PaperCell:
    """One method in one column of a table of the paper."""

    dataset: str
    network: str
    method: str
    verdict: Verdict
    entry: Entry | None = None
    """Ours, if there is an epoch of it."""
    done: int = 0
    """The epochs of the run that is furthest."""
    lost: bool = False
    """Whether all that its mean would be over died."""
    fewer_bits: bool = False
    """Whether ours was computed in bf16."""

    @property
    def theirs(self) -> paper.Result | None:
        """The paper's; None where it says that the method does not converge."""
        return paper.RESULTS[self.dataset, self.network, self.method]

    @property
    def epochs(self) -> int:
        """For how long the paper trains."""
        return paper.EPOCHS[self.dataset]

    @property
    def gain(self) -> float | None:
        """The points of accuracy that ours is above the paper's, where both are known."""
        if self.entry is None or self.lost or self.entry.epoch != self.epochs:
            return None
        return _gain(self.theirs, self.entry)

    @property
    def other_batches(self) -> int | None:
        """The size of ours where it is not that of the authors."""
        size = paper.BATCH_SIZE if self.entry is None else self.entry.problem.batch_size
        return None if size == paper.BATCH_SIZE else size


def begun(compared: Sequence[Comparison], tables: Sequence[str] = TABLES) -> bool:
    """Whether there is an epoch of one of the paper's tables."""
    return any(
        run.epochs for one in compared if one.problem.experiment in tables for run in one.runs
    )


def paper_cells(compared: Sequence[Comparison], table: str) -> list[PaperCell]:
    """Every cell of a table of the paper, column by column; also those that nobody has run."""
    experiment = EXPERIMENTS[table]
    mine = [one for one in compared if one.problem.experiment == table]
    return [
        _cell(mine, column.dataset, column.network, method)
        for column in experiment.columns
        for method in experiment.methods
    ]


def _cell(mine: Sequence[Comparison], dataset: str, network: str, method: str) -> PaperCell:
    found = [
        one
        for one in mine
        if (one.problem.dataset, one.problem.network) == (dataset, network)
        and any(run.epochs for run in one.methods.get(method, ()))
    ]
    if not found:
        return PaperCell(dataset, network, method, Verdict.NOT_RUN)
    wanted = paper.EPOCHS[dataset]
    one = max(found, key=_nearness)
    group = one.methods[method]
    entry = next(entry for entry in summary(one) if entry.method == method)
    if (entry.problem.epochs, entry.problem.batch_size) != (wanted, paper.BATCH_SIZE):
        verdict = Verdict.NONE
    elif all(run.end is None or (len(run.epochs) < wanted and not dead(run)) for run in group):
        verdict = Verdict.UNFINISHED
    else:
        verdict = _judged(paper.RESULTS[dataset, network, method], entry)
    done = max(len(run.epochs) for run in group)
    lost, fewer = all(map(dead, counted(group))), bool(fewer_bits(group))
    return PaperCell(dataset, network, method, verdict, entry, done, lost, fewer)


def _nearness(one: Comparison) -> tuple[bool, bool, int]:
    """To what the paper did: its batches first, then its length, then as long as can be."""
    problem = one.problem
    as_long = problem.epochs == paper.EPOCHS[problem.dataset]
    return problem.batch_size == paper.BATCH_SIZE, as_long, problem.epochs


def _judged(theirs: paper.Result | None, entry: Entry) -> Verdict:
    """Of a cell that ran as long as the paper's: the rule that `RULE` has in words."""
    if theirs is None:
        return Verdict.REPRODUCED if entry.died else Verdict.BETTER
    gain = _gain(theirs, entry)
    if entry.died or gain is None:
        return Verdict.WORSE
    tolerance = max(CLOSE_ACCURACY, round(entry.values[ACCURACY].spread or 0.0, 2))
    if abs(gain) <= tolerance + 1e-9:
        return Verdict.REPRODUCED
    return Verdict.BETTER if gain > 0 else Verdict.WORSE


def _gain(theirs: paper.Result | None, entry: Entry) -> float | None:
    """Both to the two decimals that are shown, so that nobody finds another verdict by hand."""
    if theirs is None or ACCURACY not in entry.values:
        return None
    return round(round(entry.values[ACCURACY].mean, 2) - theirs.test_accuracy, 2) + 0.0  # no −0
