"""How methods stand on a task of the zoo: the best tuned reference, and what others are to it.

LineSearch is judged by its averaged weights. Every other method, tuned or not, is judged by its
final or its averaged weights, whichever are better: the doubt is in its favour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cgqbench.analysis.chance import dead
from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.measures import averaged, best, higher_is_better, judged_by
from cgqbench.analysis.summary import Entry, summary
from cgqbench.records.reading import Run
from cgqbench.tasks.zoo import PARTS, ZOO, part_of

CONSTANT, SCHEDULED = REFERENCES = "adamw", "adamw_cosine"
"""The methods whose best rate is the reference."""
DEFAULT = "adamw:lr=0.001"
"""The rate of those who do not tune."""
OURS = "search"
CLOSE_LOSS, CLOSE_ACCURACY = 1.0, 0.3
"""Worse than the reference by no more than these, percents and points, is as good as it."""
UNCHOSEN = tuple(part for part in PARTS if part != "chosen")
"""The parts of the zoo on which nothing was chosen."""
LEAST_ERROR = 0.01
"""Percents: no error is taken for less, so that one may be divided by it."""


@dataclass(frozen=True)
class Result:
    """A method on a task, by the weights that it is judged by."""

    entry: Entry
    metric: str
    runs: list[Run]

    @property
    def method(self) -> str:
        """Its name, with its settings."""
        return self.entry.method

    @property
    def value(self) -> float | None:
        """The mean over seeds; None if there is nothing to take one of."""
        found = self.entry.values.get(self.metric)
        return None if found is None else found.mean

    @property
    def died(self) -> int:
        """The seeds that diverged or learned nothing."""
        return sum(map(dead, self.runs))

    @property
    def sound(self) -> bool:
        """Whether every seed ended, and alive."""
        return self.entry.complete and not self.died and self.value is not None


@dataclass(frozen=True)
class Standing:
    """All methods on one task."""

    comparison: Comparison
    measure: str
    tuned: dict[str, Result]
    """The best rate of each kind of schedule, as far as there is one."""
    untuned: dict[str, Result]

    @property
    def task(self) -> str:
        """The task's name."""
        return self.comparison.problem.network

    @property
    def title(self) -> str:
        """What it is called in tables."""
        return self.comparison.name.removeprefix("Zoo / ")

    @property
    def part(self) -> str:
        """The part of the zoo it is of, in words."""
        part = part_of(self.task)
        return part if part in UNCHOSEN else "chosen on"

    @property
    def reference(self) -> Result | None:
        """The best of all tuned."""
        return _best(list(self.tuned.values()), self.measure)

    @property
    def results(self) -> dict[str, Result]:
        """By name: the reference of each schedule, and every untuned method."""
        return {**self.tuned, **self.untuned}

    def gap(self, result: Result) -> float | None:
        """How much worse than the reference: losses in percent, accuracies in points."""
        if self.reference is None or not self.reference.value or result.value is None:
            return None
        theirs = self.reference.value
        if higher_is_better(self.measure):
            return theirs - result.value
        return 100 * (result.value - theirs) / theirs

    def close(self, result: Result) -> bool:
        """Whether a method keeps up with the reference."""
        gap = self.gap(result)
        limit = CLOSE_ACCURACY if higher_is_better(self.measure) else CLOSE_LOSS
        return result.sound and gap is not None and gap <= limit + 1e-9

    def factor(self, result: Result) -> float:
        """A method's loss, or its error in percent, over the least of all; ∞ if a seed died."""
        sound = [one for one in self.results.values() if one.sound]
        if not result.sound:
            return math.inf
        return self._cost(result) / min(map(self._cost, sound))

    def _cost(self, result: Result) -> float:
        assert result.value is not None
        error = max(100 - result.value, LEAST_ERROR)
        return error if higher_is_better(self.measure) else result.value


def standings(compared: Sequence[Comparison]) -> list[Standing]:
    """One for each task of the zoo that there are records of, part by part, the fresh last."""
    found = [_standing(one) for one in compared if one.problem.experiment == ZOO]
    return sorted(found, key=lambda standing: list(PARTS).index(part_of(standing.task)))


def parts(found: Sequence[Standing]) -> dict[str, list[Standing]]:
    """The parts on which nothing was chosen, as far as there are records of them, and all."""
    apart = {part: [one for one in found if one.part == part] for part in UNCHOSEN}
    known = {part: members for part, members in apart.items() if 0 < len(members) < len(found)}
    return {**known, "all": list(found)}


def family(method: str) -> str:
    """A method's name without its settings."""
    return method.partition(":")[0]


def _standing(comparison: Comparison) -> Standing:
    entries = summary(comparison)
    measure = judged_by(entry.values for entry in entries)
    results = [
        Result(entry, _judged(entry, measure), comparison.methods[entry.method])
        for entry in entries
    ]
    tuned = {
        kind: _best([one for one in results if family(one.method) == kind], measure)
        for kind in REFERENCES
    }
    return Standing(
        comparison,
        measure,
        {kind: one for kind, one in tuned.items() if one is not None},
        {
            one.method: one
            for one in results
            if one.method == DEFAULT or family(one.method) not in REFERENCES
        },
    )


def _judged(entry: Entry, measure: str) -> str:
    """The metric that a method is judged by."""
    average = averaged(measure)
    known = [metric for metric in (average, measure) if metric in entry.values]
    if len(known) < 2 or family(entry.method) == OURS:
        return known[0] if known else measure
    values = [entry.values[metric].mean for metric in known]
    return known[values.index(best(measure, values))]


def _best(results: Sequence[Result], measure: str) -> Result | None:
    sound = [one for one in results if one.sound]
    values = [one.value for one in sound if one.value is not None]
    return sound[values.index(best(measure, values))] if sound else None
