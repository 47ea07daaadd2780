"""What an epoch of a method costs, and on which machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from cgqbench.analysis.comparison import Comparison, several
from cgqbench.analysis.curves import epoch_seconds, seconds
from cgqbench.records.reading import Run
from cgqbench.records.record import Line


def median_epoch(runs: Sequence[Run]) -> float | None:
    """The median training seconds of an epoch, over all epochs of all seeds."""
    found = [value for run in runs for value in epoch_seconds(run).values()]
    return statistics.median(found) if found else None


def passes(runs: Sequence[Run]) -> float | None:
    """The passes through the network that a step took, on average over all epochs of all seeds.

    One is forward and backward; each further one is a look ahead, forward only.
    """
    found = [row["passes"] for run in runs for row in run.epochs if row.get("passes") is not None]
    return statistics.fmean(found) if found else None


def training_seconds(runs: Sequence[Run]) -> float | None:
    """The seconds of training of a whole run, mean over seeds; None if they are not known."""
    elapsed = seconds(runs)
    return elapsed[-1] if elapsed else None


@dataclass(frozen=True)
class Cost:
    """What an epoch of a method takes."""

    method: str
    label: str
    """The method's, with the machine where not all ran on the same."""
    seconds: float
    ratio: float | None
    """To SGD, if that ran on the same machine."""


def costs(comparison: Comparison) -> list[Cost]:
    """The cost of each method that has times."""
    medians = {method: median_epoch(group) for method, group in comparison.methods.items()}
    times = {method: value for method, value in medians.items() if value is not None}
    machines = {method: machines_of(comparison.methods[method]) for method in times}
    apart = len({name for names in machines.values() for name in names}) > 1
    found = []
    for method, value in times.items():
        label = comparison.labels[method]
        if apart:
            label += f" ({' and '.join(machines[method])})"
        alike = len(machines[method]) == 1 and machines[method] == machines.get("sgd")
        unit = times["sgd"] if alike else None
        found.append(Cost(method, label, value, value / unit if unit else None))
    return found


def three_digits(value: float) -> str:
    """A number in three digits, or more where it has more before the point.

    >>> three_digits(2.9), three_digits(99.96), three_digits(599.4), three_digits(1125.2)
    ('2.90', '100', '599', '1,125')
    """
    return f"{value:#.3g}".rstrip(".") if abs(value) < 100 else f"{value:,.0f}"


def machines_of(runs: Sequence[Run]) -> list[str]:
    """The machines that runs were timed on, each once."""
    return list(dict.fromkeys(machine_of(run.header) for run in runs if run.times))


def machine_of(header: Line) -> str:
    """What a run ran on.

    >>> machine_of({"hardware": "NVIDIA H200", "device": "cuda", "threads": 1})
    'NVIDIA H200, cuda, 1 thread'
    """
    threads = header.get("threads")
    words = [header.get("hardware"), header.get("device"), threads and several(threads, "thread")]
    return ", ".join(filter(None, words)) or "unknown machine"
