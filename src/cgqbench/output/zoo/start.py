"""How soon a method is under way: steps to the loss that tuned AdamW has at step 300."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.measures import shown_loss
from cgqbench.analysis.milestones import AT, WINDOW, Milestone, milestone
from cgqbench.analysis.standings import CONSTANT, SCHEDULED, Standing, parts, standings
from cgqbench.output.table import Column, Span, Table, TableCell, plain_row


def zoo_start(compared: Sequence[Comparison]) -> Table | None:
    """A row for each task whose records hold train losses, and the medians; None without any."""
    found = [(one, milestone(one)) for one in standings(compared)]
    known = [(one, mark) for one, mark in found if mark is not None]
    if not known:
        return None
    labels = {
        name: "AdamW + cosine, tuned" if name == SCHEDULED else result.entry.label
        for one, _ in known
        for name, result in one.results.items()
        if name != CONSTANT
    }
    heads = [Column("task"), Column("tuned AdamW's loss", numbers=True)]
    heads += [Column(label, numbers=True) for label in labels.values()]
    rows = [_row(one, mark, labels) for one, mark in known]
    for part in parts([one for one, _ in known]):
        marks = [mark for one, mark in known if part in (one.part, "all")]
        rows.append(_median(f"median, {part}", marks, labels))
    return Table(
        f"The zoo, steps to the loss that tuned AdamW has at step {AT}",
        tuple(heads),
        tuple(rows),
        f"Train loss: the mean over about the last {WINDOW} steps and over seeds. Tuned AdamW: the "
        "constant rate that is best in the end. A run that is shorter has its last step for "
        f"step {AT}, and is in no median. –: never.",
    )


def _row(standing: Standing, mark: Milestone, labels: dict[str, str]) -> tuple[TableCell, ...]:
    reference = standing.tuned[CONSTANT].entry.label
    at = f"{reference}, step {mark.step}"
    return (
        TableCell((Span(standing.title),), ((Span(standing.part),),)),
        TableCell((Span(shown_loss(mark.loss)),), ((Span(at),),)),
        *(TableCell((Span(_steps(mark, name)),)) for name in labels),
    )


def _steps(mark: Milestone, name: str) -> str:
    if name not in mark.steps:
        return ""
    steps = mark.steps[name]
    return "–" if steps is None else f"{steps:.0f}"


def _median(
    words: str, marks: Sequence[Milestone], labels: dict[str, str]
) -> tuple[TableCell, ...]:
    return plain_row(words, "", *(_middle(marks, name) for name in labels))


def _middle(marks: Sequence[Milestone], name: str) -> str:
    """The median over the tasks that have a step 300; never is the latest of all."""
    known = [mark.steps[name] for mark in marks if name in mark.steps and mark.step == AT]
    if not known:
        return ""
    middle = statistics.median(math.inf if steps is None else steps for steps in known)
    return "–" if math.isinf(middle) else f"{middle:.0f}"
