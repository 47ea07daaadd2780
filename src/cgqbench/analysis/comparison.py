"""Records → comparisons: the runs that may stand side by side, checked, named and in order."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cgqbench.experiments import EXPERIMENTS
from cgqbench.methods import METHODS
from cgqbench.records.problem import TITLES, Problem, label_of, problem_of, words_of
from cgqbench.records.reading import Run
from cgqbench.records.record import Line, RecordError


@dataclass(frozen=True)
class Comparison:
    """The runs of one problem, by method."""

    problem: Problem
    name: str
    """What the problem is called: unlike any other of the experiment."""
    shared: list[str]
    """The words that the labels of all methods would repeat."""
    methods: dict[str, list[Run]]
    labels: dict[str, str]
    """How each method is called, without those words."""

    @property
    def title(self) -> str:
        """Its heading: the problem, and what all the methods share."""
        return ", ".join([self.name, *self.shared])

    @property
    def runs(self) -> list[Run]:
        """Those of all methods."""
        return [run for group in self.methods.values() for run in group]

    @property
    def budget(self) -> str:
        """What each method was given: epochs and seeds, and bf16 if any run had that."""
        counts = [len(group) for group in self.methods.values()]
        few, many = min(counts), max(counts)
        seeds = several(many, "seed") if few == many else f"{few} to {many} seeds"
        words = [several(self.problem.epochs, "epoch"), seeds, *fewer_bits(self.runs)]
        return ", ".join(words)

    def settings(self, method: str) -> Line:
        """What a method was set to."""
        return self.methods[method][0].header.get("settings") or {}


def comparisons(runs: Sequence[Run]) -> list[Comparison]:
    """A comparison for each problem; problems and methods are in the order of the tables."""
    grouped: dict[Problem, dict[str, list[Run]]] = {}
    for run in sorted(runs, key=_place):
        methods = grouped.setdefault(problem_of(run.header), {})
        methods.setdefault(run.header["method"], []).append(run)
    found = []
    for problem, methods in grouped.items():
        kin = [other for other in grouped if other.experiment == problem.experiment]
        headers = {key: group[0].header for other in kin for key, group in grouped[other].items()}
        shared = _shared(headers.values())
        name = _name(problem, kin)
        labels = {method: _label(headers[method], shared) for method in methods}
        distinct = {method: _distinct(group) for method, group in methods.items()}
        found.append(Comparison(problem, name, shared, distinct, labels))
    return found


def fewer_bits(runs: Sequence[Run]) -> list[str]:
    """The arithmetic of runs in words, where any of them had fewer bits than usual."""
    found = sorted({run.header["arithmetic"] for run in runs if "arithmetic" in run.header})
    return [" or ".join(found)] if "bf16" in found else []


def several(count: int, thing: str) -> str:
    """A count in words.

    >>> several(1, "seed"), several(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count} {thing}{'s' * (count != 1)}"


def _name(problem: Problem, kin: Iterable[Problem]) -> str:
    """The plain title, with all in which the problem differs from others that share it."""
    rivals = [other for other in kin if other.title == problem.title]
    words = [problem.title]
    if len({rival.content for rival in rivals}) > 1:
        words = [problem.task or problem.title]
        if len({rival.content for rival in rivals if rival.task == problem.task}) > 1:
            words.append(f"version {str(problem.content)[:8]}")
    if len({rival.epochs for rival in rivals}) > 1:
        words.append(several(problem.epochs, "epoch"))
    if len({rival.batch_size for rival in rivals}) > 1:
        words.append(f"batch size {problem.batch_size}")
    return ", ".join(words)


def _shared(headers: Iterable[Line]) -> list[str]:
    """The words that the labels of all methods repeat, if each has others besides."""
    found = [words_of(header) for header in headers]
    if len({words[0] for words in found}) > 1:
        return []
    shared = [word for word in found[0] if all(word in words for words in found)]
    return shared if all(len(words) > len(shared) for words in found) else []


def _label(header: Line, shared: list[str]) -> str:
    if not shared:
        return label_of(header)
    return ", ".join(word for word in words_of(header) if word not in shared)


def _distinct(runs: list[Run]) -> list[Run]:
    """A method's runs on one problem, each seed once; all must have the same settings."""
    seeds: dict[int, Run] = {}
    for run in runs:
        first = seeds.setdefault(run.header["seed"], run)
        if (first.header, first.epochs, first.end) != (run.header, run.epochs, run.end):
            raise RecordError(
                f"{first.path} and {run.path} are different records of one run "
                f"({run.header['method']}, seed {run.header['seed']}). Remove one of them, or "
                "report their folders apart."
            )
        for differing in ("settings", "arithmetic"):
            if run.header.get(differing) != runs[0].header.get(differing):
                raise RecordError(
                    f"{runs[0].path} and {run.path} call their method {run.header['method']}, but "
                    f"their {differing} differ, so that no mean can be taken. Report their folders "
                    "apart."
                )
    return list(seeds.values())


def _place(run: Run) -> tuple[object, ...]:
    header = run.header
    method = header["method"]
    experiment = EXPERIMENTS.get(header["experiment"])
    words = re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?|[^\d]+", method)
    return (
        header["experiment"],
        _index(header["dataset"], tuple(TITLES)),
        header["dataset"],
        _index(header["network"], tuple(TITLES)),
        header["network"],
        str(header.get("task")),
        str(header.get("checksum")),
        header["epochs"],
        header["batch_size"],
        _index(method, experiment.methods if experiment else ()),
        _index(method.partition(":")[0], tuple(METHODS)),
        [(float(word), "") if word[0].isdecimal() else (math.inf, word) for word in words],
        header["seed"],
    )


def _index(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)
