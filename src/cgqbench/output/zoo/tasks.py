"""The zoo task by task: the best tuned reference, and every untuned method beside it."""

from __future__ import annotations

from collections.abc import Sequence

from cgqbench.analysis.comparison import Comparison, several
from cgqbench.analysis.costs import passes, training_seconds
from cgqbench.analysis.measures import averaged, difference, name, shown_with_spread
from cgqbench.analysis.standings import (
    CLOSE_ACCURACY,
    CLOSE_LOSS,
    Result,
    Standing,
    standings,
)
from cgqbench.output.table import Column, Span, Table, TableCell, plain_row
from cgqbench.tasks.zoo import EPOCHS, MEMBERS

CAPTION = (
    "Test accuracy (%), or else test loss, after the last step, mean ± standard deviation over "
    "seeds. Best tuned: the best of all rates of AdamW, constant and scheduled, by its final or "
    "its averaged weights. LineSearch is judged by its averaged weights, every other method by the "
    "better of the two; the others are below, with the passes a step and the seconds of training. "
    f"Bold: no more than {CLOSE_LOSS:g} % or {CLOSE_ACCURACY:g} points worse than the best tuned. "
    "Defaults were chosen on some of the tasks. The reported ones were seen, and changed the "
    "method; the fresh ones were seen after each rule, and chose none."
)


def zoo_tasks(compared: Sequence[Comparison]) -> Table:
    """A row for each task."""
    found = standings(compared)
    labels = {method: result.entry.label for one in found for method, result in one.untuned.items()}
    heads = [Column("task"), Column("best tuned", numbers=True)]
    heads += [Column(label, numbers=True) for label in labels.values()]
    rows = [
        (_task(one), _reference(one), *(_cell(one, method) for method in labels)) for one in found
    ]
    return Table("The zoo", tuple(heads), tuple(rows), CAPTION)


def _task(standing: Standing) -> TableCell:
    member = MEMBERS.get(standing.task)
    steps = standing.comparison.problem.epochs * member.steps // EPOCHS if member else 0
    budget = f"{steps:,} steps" if member else ""
    lines = filter(None, (standing.part, budget, name(standing.measure)))
    return TableCell((Span(standing.title),), tuple((Span(line),) for line in lines))


def _reference(standing: Standing) -> TableCell:
    result = standing.reference
    if result is None:
        return plain_row("–")[0]
    return _noted(result, standing, result.entry.label, bold=False)


def _cell(standing: Standing, method: str) -> TableCell:
    result = standing.untuned.get(method)
    if result is None:
        return TableCell()
    if result.value is None:
        return plain_row("died" if result.died else "…")[0]
    reference = standing.reference
    words = ""
    if reference is not None and reference.value is not None:
        words = difference(standing.measure, result.value, reference.value)
    return _noted(result, standing, words, bold=standing.close(result))


def _noted(result: Result, standing: Standing, first: str, bold: bool) -> TableCell:
    shown = shown_with_spread(result.metric, result.entry.values[result.metric])
    lines = first, _state(result), _other(result, standing.measure), _cost(result)
    notes = tuple((Span(line),) for line in lines if line)
    return TableCell((Span(shown, bold),), notes)


def _other(result: Result, measure: str) -> str:
    """What the weights that it is not judged by come to."""
    names = {measure: "final", averaged(measure): "averaged"}
    words = [
        f"{word} {shown_with_spread(metric, result.entry.values[metric])}"
        for metric, word in names.items()
        if metric != result.metric and metric in result.entry.values
    ]
    return "".join(words)


def _state(result: Result) -> str:
    words = []
    if result.died:
        words.append(f"{result.died} of {several(result.entry.seeds, 'seed')} died")
    elif result.entry.seeds > 1:
        words.append(several(result.entry.seeds, "seed"))
    if result.entry.unfinished:
        words.append(f"{result.entry.unfinished} unfinished")
    return ", ".join(words)


def _cost(result: Result) -> str:
    """Passes a step, and the time of a run."""
    found, elapsed = passes(result.runs), training_seconds(result.runs)
    words = [f"{found:.2f} passes"] if found is not None else []
    words += [f"{elapsed:.3g} s"] if elapsed is not None else []
    return ", ".join(words)
