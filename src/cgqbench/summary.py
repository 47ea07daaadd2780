"""Records → numbers: each method's last epoch, as mean and spread over its seeds."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cgqbench import paper
from cgqbench.record import Line, Run

TITLES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "svhn": "SVHN",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "mlp": "MLP",
    "vgg16": "VGG-16",
    "resnet20": "ResNet-20",
    "resnet110": "ResNet-110",
    "resnet164": "ResNet-164",
    "densenet100": "DenseNet-100",
}
"""How datasets and networks are written in headings, in the order of the columns."""

METRICS = (
    "train_loss",
    "test_loss",
    "test_accuracy",
    "average_test_loss",
    "average_test_accuracy",
)

_METHODS = (
    *paper.METHODS,
    *("sgd_cosine", "adamw_cosine", "schedulefree_sgd", "schedulefree_adamw"),
    *("prodigy", "dadaptation", "dog", "scgq_relative"),
)


@dataclass(frozen=True)
class Problem:
    """What methods are compared on: runs of one problem may stand side by side."""

    experiment: str
    dataset: str
    network: str
    epochs: int
    batch_size: int
    task: str | None = None

    @property
    def title(self) -> str:
        """Its heading.

        >>> Problem("table1", "svhn", "vgg16", epochs=40, batch_size=64).title
        'SVHN / VGG-16'
        """
        if self.task is not None:
            return Path(self.task).stem
        return " / ".join(TITLES.get(name, name) for name in (self.dataset, self.network))


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation over seeds; one seed has no spread."""

    mean: float
    spread: float | None
    count: int


@dataclass(frozen=True)
class Entry:
    """One method on one problem, after the last epoch."""

    problem: Problem
    method: str
    label: str
    seeds: int
    diverged: int
    unfinished: int
    epoch: int
    """The epoch the values are of: the last one, or the last that all unfinished runs share."""
    values: dict[str, Statistic]
    """By metric; a metric that was not recorded is left out."""
    best: frozenset[str] = frozenset()
    """The metrics in which no complete entry of the same problem is better, as far as shown."""

    @property
    def complete(self) -> bool:
        """Whether every seed ran to its end, so that the entry may be called the best."""
        return self.diverged == self.unfinished == 0

    @property
    def in_paper(self) -> bool:
        """Whether the paper has this entry; `paper` is then None if it did not converge there."""
        return (self.problem.dataset, self.problem.network, self.method) in paper.RESULTS

    @property
    def paper(self) -> paper.Result | None:
        """The paper's own numbers."""
        key = (self.problem.dataset, self.problem.network, self.method)
        return paper.RESULTS.get(key)


def summary(runs: Sequence[Run]) -> list[Entry]:
    """An entry for each method on each problem, in the order of the tables."""
    entries = []
    for problem, methods in by_problem(runs).items():
        column = [_entry(problem, method, group) for method, group in methods.items()]
        entries += [replace(entry, best=_best(entry, column)) for entry in column]
    return entries


def by_problem(runs: Sequence[Run]) -> dict[Problem, dict[str, list[Run]]]:
    """The runs of each method on each problem, problems and methods in the tables' order."""
    grouped: dict[Problem, dict[str, list[Run]]] = {}
    for run in sorted(runs, key=_place):
        methods = grouped.setdefault(problem_of(run.header), {})
        methods.setdefault(run.header["method"], []).append(run)
    return grouped


def problem_of(header: Line) -> Problem:
    """The problem that the first line of a record names."""
    return Problem(
        header["experiment"],
        header["dataset"],
        header["network"],
        header["epochs"],
        header["batch_size"],
        header.get("task"),
    )


def label_of(header: Line) -> str:
    """The method's name in tables, with the settings that tell it from its kin.

    >>> label_of({"method": "scgq:search_prob=0.3,lr=0.1", "label": "sCGQ(2pt)"})
    'sCGQ(2pt) search_prob=0.3, lr=0.1'
    """
    name, _, settings = str(header["method"]).partition(":")
    label = str(header.get("label") or name)
    told = ", ".join(settings.split(","))
    return label if told in label else f"{label} {told}"


def counted(runs: Sequence[Run]) -> list[Run]:
    """Those a mean is taken over: the finished ones or, before there are any, the running ones."""
    sound = [run for run in runs if run.epochs and not run.diverged]
    return [run for run in sound if run.end is not None] or sound


def statistic(values: Sequence[float | None]) -> Statistic | None:
    """Mean and sample standard deviation of the values there are.

    >>> statistic([1.0, 2.0, None, 3.0])
    Statistic(mean=2.0, spread=1.0, count=3)
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    spread = statistics.stdev(known) if len(known) > 1 else None
    return Statistic(statistics.fmean(known), spread, len(known))


def shown_loss(value: float, like: float | None = None) -> str:
    """A loss to three significant digits, or to the decimals that another one has.

    >>> shown_loss(0.0024049), shown_loss(0.00003, like=0.0024049), shown_loss(1.45)
    ('0.00240', '0.00003', '1.45')
    """
    size = abs(value if like is None else like)
    if size != 0 and not 1e-5 <= size < 1e6:
        return f"{value:.2e}"
    decimals = 2 if size == 0 else max(0, 2 - math.floor(math.log10(size)))
    return f"{value:.{decimals}f}"


def shown(metric: str, value: float) -> str:
    """A value as tables show it: losses to three digits, accuracies to two decimals."""
    return f"{value:.2f}" if metric.endswith("accuracy") else shown_loss(value)


def _entry(problem: Problem, method: str, runs: list[Run]) -> Entry:
    rows = counted(runs)
    last = min((len(run.epochs) for run in rows), default=0)
    found = {
        metric: statistic([run.epochs[last - 1].get(metric) for run in rows]) for metric in METRICS
    }
    return Entry(
        problem,
        method,
        label_of(runs[0].header),
        seeds=len(runs),
        diverged=sum(run.diverged for run in runs),
        unfinished=sum(run.end is None for run in runs),
        epoch=last,
        values={metric: value for metric, value in found.items() if value is not None},
    )


def _best(entry: Entry, column: list[Entry]) -> frozenset[str]:
    rivals = [rival for rival in column if rival.complete]
    if not entry.complete or len(column) == 1:
        return frozenset()
    best = []
    for metric, value in entry.values.items():
        means = [rival.values[metric].mean for rival in rivals if metric in rival.values]
        winner = max(means) if metric.endswith("accuracy") else min(means)
        if shown(metric, value.mean) == shown(metric, winner):
            best.append(metric)
    return frozenset(best)


def _place(run: Run) -> tuple[object, ...]:
    header = run.header
    method, _, settings = header["method"].partition(":")
    return (
        header["experiment"],
        _index(header["dataset"], tuple(TITLES)),
        header["dataset"],
        _index(header["network"], tuple(TITLES)),
        header["network"],
        str(header.get("task")),
        header["epochs"],
        header["batch_size"],
        _index(method, _METHODS),
        method,
        [(float(word), "") if word[0].isdigit() else (math.inf, word) for word in _words(settings)],
        header["seed"],
    )


def _index(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)


def _words(settings: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?|[^\d]+", settings)
