"""The sweeps' question: does LineSearch, which is told no rate, keep up with the best rate?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cgqbench.analysis.comparison import Comparison, several
from cgqbench.analysis.summary import Entry, shown_with_spread, summary
from cgqbench.output.listing import Listing

SWEEPS = ("sweep", "sweep_long", "sweep_images")


def against_tuned(compared: Sequence[Comparison]) -> Listing | None:
    """LineSearch beside the best of each sweep, by final weights and by averaged ones.

    None without sweeps that have both.
    """
    swept = [one for name in SWEEPS for one in compared if one.problem.experiment == name]
    rows = [row for comparison in swept for row in _rows(comparison)]
    if not rows:
        return None
    return Listing(
        "LineSearch against tuned rates",
        (
            "problem",
            "LineSearch",
            "final",
            "averaged",
            "best tuned, final",
            "best tuned, averaged",
            "difference",
        ),
        tuple(rows),
        "Test accuracy (%), or else test loss, after the last epoch. Best tuned: the best mean of "
        "all rates and schedules whose seeds all finished, whatever the number of seeds, so that "
        "luck is on the tuned side. Difference: LineSearch's average against the better of the two "
        "tuned.",
    )


def _rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    entries = summary(comparison)
    accuracy = any("test_accuracy" in entry.values for entry in entries)
    final = "test_accuracy" if accuracy else "test_loss"
    averaged = f"average_{final}"
    untuned = [entry for entry in entries if entry.method.partition(":")[0] == "search"]
    tuned = [entry for entry in entries if entry.complete and entry not in untuned]
    bests = {metric: _best(tuned, metric) for metric in (final, averaged)}
    found = [best.values[metric].mean for metric, best in bests.items() if best is not None]
    if not found:
        return
    target = max(found) if accuracy else min(found)
    for entry in untuned:
        ours = entry.values.get(averaged) or entry.values.get(final)
        yield (
            f"{comparison.name}, {several(comparison.problem.epochs, 'epoch')}",
            _named(entry),
            _value(entry, final),
            _value(entry, averaged),
            *(_best_words(best, metric) for metric, best in bests.items()),
            "–" if ours is None else difference(ours.mean, target, accuracy),
        )


def difference(ours: float, theirs: float, accuracy: bool) -> str:
    """How two results compare: losses in percent, accuracies, which are percents, in points.

    >>> difference(1.44, 1.5, accuracy=False), difference(91.0, 91.3, accuracy=True)
    ('4.0 % better', '0.30 points worse')
    """
    gain = ours - theirs if accuracy else 100 * (theirs - ours) / theirs
    size = f"{abs(gain):.2f} points" if accuracy else f"{abs(gain):.1f} %"
    if not float(size.split()[0]):
        return "level"
    return f"{size} {'better' if gain > 0 else 'worse'}"


def _best(tuned: Sequence[Entry], metric: str) -> Entry | None:
    known = [entry for entry in tuned if metric in entry.values]
    sign = -1 if metric.endswith("accuracy") else 1
    return min(known, key=lambda entry: sign * entry.values[metric].mean, default=None)


def _best_words(best: Entry | None, metric: str) -> str:
    return "–" if best is None else f"{_value(best, metric)} ({_named(best)})"


def _named(entry: Entry) -> str:
    lost = f", {entry.diverged} diverged" if entry.diverged else ""
    going = f", {entry.unfinished} unfinished" if entry.unfinished else ""
    return f"{entry.label}, {several(entry.seeds, 'seed')}{lost}{going}"


def _value(entry: Entry, metric: str) -> str:
    value = entry.values.get(metric)
    return "–" if value is None else shown_with_spread(metric, value)
