"""The sweeps' question: does LineSearch, which is told no rate, keep up with the best rate?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cgqbench.analysis.comparison import Comparison, several
from cgqbench.analysis.costs import passes
from cgqbench.analysis.measures import averaged, best, difference, judged_by, shown_with_spread
from cgqbench.analysis.summary import Entry, summary
from cgqbench.output.table import Column, Table, TableCell, plain_row
from cgqbench.records.reading import Run

SWEEPS = ("sweep", "sweep_long", "sweep_images")
COLUMNS = (
    *("problem", "LineSearch", "final", "averaged"),
    *("best tuned, final", "best tuned, averaged", "difference", "passes a step"),
)


def against_tuned(compared: Sequence[Comparison]) -> Table | None:
    """LineSearch beside the best of each sweep, by final weights and by averaged ones.

    None without sweeps that have both.
    """
    swept = [one for name in SWEEPS for one in compared if one.problem.experiment == name]
    rows = [row for comparison in swept for row in _rows(comparison)]
    if not rows:
        return None
    return Table(
        "LineSearch against tuned rates",
        tuple(map(Column, COLUMNS)),
        tuple(rows),
        "Test accuracy (%), or else test loss, after the last epoch. Best tuned: the best mean of "
        "all rates and schedules whose seeds all finished, whatever the number of seeds, so that "
        "luck is on the tuned side. Difference: LineSearch's average against the better of the two "
        "tuned. Passes a step: LineSearch's; one is forward and backward, each further one is "
        "forward only.",
    )


def _rows(comparison: Comparison) -> Iterator[tuple[TableCell, ...]]:
    entries = summary(comparison)
    final = judged_by(entry.values for entry in entries)
    average = averaged(final)
    untuned = [entry for entry in entries if entry.method.partition(":")[0] == "search"]
    tuned = [entry for entry in entries if entry.complete and entry not in untuned]
    bests = {metric: _best(tuned, metric) for metric in (final, average)}
    found = [one.values[metric].mean for metric, one in bests.items() if one is not None]
    if not found:
        return
    target = best(final, found)
    for entry in untuned:
        ours = entry.values.get(average) or entry.values.get(final)
        yield plain_row(
            f"{comparison.name}, {several(comparison.problem.epochs, 'epoch')}",
            _named(entry),
            _value(entry, final),
            _value(entry, average),
            *(_best_words(one, metric) for metric, one in bests.items()),
            "–" if ours is None else difference(final, ours.mean, target),
            _passes(comparison.methods[entry.method]),
        )


def _passes(runs: Sequence[Run]) -> str:
    found = passes(runs)
    return "–" if found is None else f"{found:.2f}"


def _best(tuned: Sequence[Entry], metric: str) -> Entry | None:
    known = [entry for entry in tuned if metric in entry.values]
    means = [entry.values[metric].mean for entry in known]
    return known[means.index(best(metric, means))] if known else None


def _best_words(entry: Entry | None, metric: str) -> str:
    return "–" if entry is None else f"{_value(entry, metric)} ({_named(entry)})"


def _named(entry: Entry) -> str:
    lost = f", {entry.diverged} diverged" if entry.diverged else ""
    going = f", {entry.unfinished} unfinished" if entry.unfinished else ""
    return f"{entry.label}, {several(entry.seeds, 'seed')}{lost}{going}"


def _value(entry: Entry, metric: str) -> str:
    value = entry.values.get(metric)
    return "–" if value is None else shown_with_spread(metric, value)
