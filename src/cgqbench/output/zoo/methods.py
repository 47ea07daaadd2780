"""The zoo method by method: the worst case, how often it keeps up, what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.costs import passes, training_seconds
from cgqbench.analysis.measures import difference, higher_is_better
from cgqbench.analysis.standings import (
    CLOSE_ACCURACY,
    CLOSE_LOSS,
    CONSTANT,
    Result,
    Standing,
    parts,
    standings,
)
from cgqbench.output.table import Column, Table, TableCell, plain_row

COLUMNS = (
    *("tasks", "method", "worst loss", "worst accuracy", "keeps up", "first"),
    *("died", "passes a step", "time"),
)
Pairs = list[tuple[Standing, Result]]


def zoo_methods(compared: Sequence[Comparison]) -> Table | None:
    """A row for each untuned method, on each part and on all tasks; None without a zoo."""
    found = standings(compared)
    methods = {name: result.entry.label for one in found for name, result in one.untuned.items()}
    rows = [
        _row(part, label, [(one, one.untuned[name]) for one in members if name in one.untuned])
        for part, members in parts(found).items()
        for name, label in methods.items()
        if any(name in one.untuned for one in members)
    ]
    if not rows:
        return None
    return Table(
        "The zoo, method by method",
        tuple(map(Column, COLUMNS)),
        tuple(rows),
        "Worst: the largest distance behind the best tuned AdamW of a task. Keeps up: tasks on "
        f"which it is no more than {CLOSE_LOSS:g} % or {CLOSE_ACCURACY:g} points worse. First: "
        "tasks on which no untuned method is better. Died: tasks on which a seed diverged or "
        "learned nothing. Time: seconds of training over those of AdamW at its best constant "
        "rate, median over the tasks.",
    )


def _row(part: str, label: str, pairs: Pairs) -> tuple[TableCell, ...]:
    count = len(pairs)
    return plain_row(
        part,
        label,
        _worst(pairs, accuracy=False),
        _worst(pairs, accuracy=True),
        f"{sum(one.close(result) for one, result in pairs)} of {count}",
        f"{sum(_first(one, result) for one, result in pairs)} of {count}",
        ", ".join(one.title for one, result in pairs if result.died) or "none",
        _middle([passes(result.runs) for _, result in pairs], statistics.fmean, "{:.2f}"),
        _middle([_time(one, result) for one, result in pairs], statistics.median, "{:.2f} ×"),
    )


def _worst(pairs: Pairs, accuracy: bool) -> str:
    """The largest gap of those judged alike, with the task; a death is worse than any."""
    alike = [pair for pair in pairs if higher_is_better(pair[0].measure) == accuracy]
    for standing, result in alike:
        if result.died:
            return f"died ({standing.title})"
    gaps = [(one.gap(result), one, result) for one, result in alike]
    known = [(gap, one, result) for gap, one, result in gaps if gap is not None]
    if not known:
        return "–"
    _, standing, result = max(known, key=lambda found: found[0])
    assert standing.reference is not None
    assert standing.reference.value is not None
    assert result.value is not None
    words = difference(standing.measure, result.value, standing.reference.value)
    return f"{words} ({standing.title})"


def _first(standing: Standing, result: Result) -> bool:
    factors = [standing.factor(one) for one in standing.untuned.values() if one.sound]
    return result.sound and standing.factor(result) <= min(factors)


def _time(standing: Standing, result: Result) -> float | None:
    reference = standing.tuned.get(CONSTANT)
    unit = training_seconds(reference.runs) if reference else None
    ours = training_seconds(result.runs)
    return ours / unit if unit and ours is not None else None


def _middle(
    values: Sequence[float | None], middle: Callable[[list[float]], float], form: str
) -> str:
    known = [value for value in values if value is not None]
    return form.format(middle(known)) if known else "–"
