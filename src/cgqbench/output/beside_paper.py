"""The paper's tables with ours beside each value, and what has become of each cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from cgqbench.analysis.comparison import Comparison, several
from cgqbench.analysis.measures import ACCURACY, averaged, shown_with_spread
from cgqbench.analysis.spread import Statistic
from cgqbench.analysis.summary import Entry
from cgqbench.analysis.verdicts import RULE, TABLES, PaperCell, Verdict, begun, paper_cells
from cgqbench.experiments import EXPERIMENTS
from cgqbench.methods import METHODS
from cgqbench.output.table import Column, Span, Table, TableCell, plain_row
from cgqbench.records.problem import TITLES

OVERVIEW = "How much of the paper is reproduced"
NAMES = {"table1": "Table 1", "table2": "Table 2"}


def how_far(compared: Sequence[Comparison]) -> Table | None:
    """Each column of the paper's tables with the number of its cells that have each verdict.

    None without an epoch of one of them.
    """
    if not begun(compared):
        return None
    rows, total = [], Counter[Verdict]()
    for table in TABLES:
        cells = paper_cells(compared, table)
        for dataset, network in dict.fromkeys((cell.dataset, cell.network) for cell in cells):
            column = [cell for cell in cells if (cell.dataset, cell.network) == (dataset, network)]
            counts = Counter(cell.verdict for cell in column)
            total += counts
            rows.append(_counted(f"{NAMES[table]}, {_title(dataset, network)}", counts))
    rows.append(_counted("both tables", total))
    heads = (Column("column"), *(Column(each.value, numbers=True) for each in Verdict))
    return Table(OVERVIEW, heads, tuple(rows), f"{RULE}.")


def beside_paper(compared: Sequence[Comparison], table: str) -> Table | None:
    """A table of the paper, cell by cell; None without an epoch of it."""
    if not begun(compared, [table]):
        return None
    cells = {
        (cell.dataset, cell.network, cell.method): cell for cell in paper_cells(compared, table)
    }
    experiment = EXPERIMENTS[table]
    heads = [
        Column(_title(one.dataset, one.network), several(one.epochs, "epoch"), numbers=True)
        for one in experiment.columns
    ]
    rows = [
        (
            *plain_row(METHODS[method].label),
            *(_cell(cells[one.dataset, one.network, method]) for one in experiment.columns),
        )
        for method in experiment.methods
    ]
    return Table(
        f"{NAMES[table]} of the paper, and ours",
        (Column("method"), *heads),
        tuple(rows),
        "The verdict, and how many points of accuracy ours is above the paper's. Train loss / test "
        "accuracy (%) of the paper and ours, mean ± standard deviation over the seeds that "
        "finished or, before one has, that run. Averaged: with the anytime average of the weights, "
        "which the verdict does not look at. No verdict: run for another number of epochs than the "
        f"paper's, or in batches of another size. The rule is below “{OVERVIEW}”.",
    )


def _title(dataset: str, network: str) -> str:
    return f"{TITLES[dataset]} / {TITLES[network]}"


def _counted(name: str, counts: Counter[Verdict]) -> tuple[TableCell, ...]:
    return plain_row(name, *(counts[verdict] or "–" for verdict in Verdict))


def _cell(cell: PaperCell) -> TableCell:
    theirs = cell.theirs
    numbers = "–" if theirs is None else f"{theirs.train_loss:.3f} / {theirs.test_accuracy:.2f}"
    notes = [f"paper {numbers}", *(_ours(cell.entry, cell) if cell.entry else ())]
    return TableCell((Span(_verdict(cell)),), tuple((Span(note),) for note in notes))


def _verdict(cell: PaperCell) -> str:
    words = cell.verdict.value
    if cell.other_batches:
        return f"{words} (batches of {cell.other_batches})"
    if cell.verdict in (Verdict.UNFINISHED, Verdict.NONE):
        return f"{words} ({cell.done} of {several(cell.epochs, 'epoch')})"
    if cell.gain is None:
        return words
    return f"{words}, {cell.gain:+.2f}".replace("-", "−")


def _ours(entry: Entry, cell: PaperCell) -> list[str]:
    """Our numbers, and what they are of."""
    values = {} if cell.lost else entry.values
    loss, accuracy = (_shown(values, metric) for metric in ("train_loss", ACCURACY))
    lines = [f"ours {loss} / {accuracy}"]
    if averaged(ACCURACY) in values:
        lines.append(f"averaged {_shown(values, averaged(ACCURACY))}")
    done = f"{entry.epoch or cell.done} of {several(cell.epochs, 'epoch')}"
    return [*lines, f"{done}, {_seeds(entry)}{', bf16' * cell.fewer_bits}"]


def _seeds(entry: Entry) -> str:
    """How many the numbers are of, of how many, and what became of the others."""
    every = several(entry.seeds, "seed")
    counted = max((value.count for value in entry.values.values()), default=entry.seeds)
    lost = [f"{entry.died} diverged or died"] if entry.died else []
    if 0 < entry.unfinished < entry.seeds:
        lost.append(f"{entry.unfinished} unfinished")
    of = every if counted == entry.seeds else f"{counted} of {every}"
    return f"{of}; {', '.join(lost)}" if lost else of


def _shown(values: Mapping[str, Statistic], metric: str) -> str:
    return shown_with_spread(metric, values[metric]) if metric in values else "–"
