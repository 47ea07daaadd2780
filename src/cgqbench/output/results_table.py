"""The table of an experiment: rows are methods, columns are problems.

What is printed bold is decided by `best_methods` in `analysis/summary.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cgqbench.analysis.comparison import Comparison, several
from cgqbench.analysis.measures import ACCURACY, averaged, judged_by, name, shown_with_spread
from cgqbench.analysis.summary import Entry, summary
from cgqbench.experiments import EXPERIMENTS, paper
from cgqbench.output.table import Column, Span, Table, TableCell, plain_row
from cgqbench.output.zoo.tasks import zoo_tasks
from cgqbench.tasks.zoo import ZOO

BOLD = (
    "Bold: the best of its column, if its seeds all finished and, where their numbers differ, are "
    "the most"
)


def results_tables(compared: Sequence[Comparison]) -> dict[str, Table]:
    """A table for each experiment, by its name; the zoo's has its tasks in rows."""
    groups: dict[str, list[Comparison]] = {}
    for one in compared:
        groups.setdefault(one.problem.experiment, []).append(one)
    return {
        experiment: (zoo_tasks if experiment == ZOO else results_table)(group)
        for experiment, group in groups.items()
    }


def results_table(compared: Sequence[Comparison]) -> Table:
    """The table of one experiment."""
    experiment = compared[0].problem.experiment
    known = EXPERIMENTS.get(experiment)
    title = known.title if known else {"compare": "Comparison"}.get(experiment, experiment)
    heads = [Column(one.title, one.budget, numbers=True) for one in compared]
    entries = [{entry.method: entry for entry in summary(one)} for one in compared]
    labels = {method: label for one in compared for method, label in one.labels.items()}
    rows = [
        (*plain_row(label), *(_cell(method, column) for column in entries))
        for method, label in labels.items()
    ]
    table = Table(title, (Column("method"), *heads), tuple(rows))
    return replace(
        table, caption=_caption(table, [one for found in entries for one in found.values()])
    )


def _caption(table: Table, entries: Sequence[Entry]) -> str:
    """What the numbers of a table are."""
    texts = [span.text for span in table.spans]
    found = {judged_by([entry.values]) for entry in entries if entry.values}
    quality = " or ".join(map(name, sorted(found))) or name(ACCURACY)
    sentences = [f"Train loss / {quality} after the last epoch"]
    if any("±" in text for text in texts):
        sentences[0] += ", mean ± standard deviation over seeds"
    if any(text.startswith("averaged") for text in texts):
        sentences.append("Averaged: the same test with the anytime average of the weights")
    if len(table.rows) > 1:
        sentences.append(BOLD)
    if any(text.endswith("–") for text in texts):
        sentences.append("–: diverged, dead, or not finite")
    return ". ".join([*sentences, ""]).strip()


def _cell(method: str, column: dict[str, Entry]) -> TableCell:
    if method not in column:
        return TableCell()
    entry = column[method]
    with_seeds = len({one.seeds for one in column.values()}) > 1
    notes = _average(entry), _paper(entry), remarks(entry, with_seeds)
    return TableCell(_value(entry), tuple(line for line in notes if line))


def _value(entry: Entry) -> tuple[Span, ...]:
    if not entry.values:
        return (Span("…" if entry.unfinished else "–"),)
    quality = judged_by([entry.values])
    words = _words(quality) if quality in entry.values else ""
    return _span(entry, "train_loss"), Span(f" / {words}"), _span(entry, quality)


def _average(entry: Entry) -> tuple[Span, ...]:
    quality = judged_by([entry.values])
    if averaged(quality) not in entry.values:
        return ()
    return Span(f"averaged {_words(quality)}"), _span(entry, averaged(quality))


def _paper(entry: Entry) -> tuple[Span, ...]:
    key = entry.problem.dataset, entry.problem.network, entry.method
    if key not in paper.RESULTS:
        return ()
    theirs = paper.RESULTS[key]
    budget = paper.EPOCHS[entry.problem.dataset]
    words = "paper" if budget == entry.problem.epochs else f"paper ({budget} epochs)"
    if entry.problem.batch_size != paper.BATCH_SIZE:
        words = f"ours at batch size {entry.problem.batch_size}, {words}"
    numbers = "–" if theirs is None else f"{theirs.train_loss:.3f} / {theirs.test_accuracy:.2f}"
    return (Span(f"{words} {numbers}"),)


def remarks(entry: Entry, with_seeds: bool) -> tuple[Span, ...]:
    """How many seeds there are, if asked for, and which of them have not come to a good end."""
    found = []
    if with_seeds:
        found.append(several(entry.seeds, "seed"))
    if entry.died:
        found.append(f"{entry.died} of {entry.seeds} diverged or died")
    if entry.unfinished:
        going = entry.unfinished + entry.diverged == entry.seeds
        at = f"epoch {entry.epoch} of {entry.problem.epochs}"
        found.append(at if going else f"{entry.unfinished} of {entry.seeds} unfinished")
    return (Span(", ".join(found)),) if found else ()


def _words(quality: str) -> str:
    """What a value is called in its cell; an accuracy, which most have, goes without."""
    return "" if quality == ACCURACY else f"{name(quality)} "


def _span(entry: Entry, metric: str) -> Span:
    value = entry.values.get(metric)
    if value is None:
        return Span("–")
    return Span(shown_with_spread(metric, value), metric in entry.best)
