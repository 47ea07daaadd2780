"""Records → the paper's figures, as PNG files. Nothing here trains."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from cgqbench.curves import median_epoch
from cgqbench.figures.bounds import ablation_bounds
from cgqbench.figures.dynamics import dynamics
from cgqbench.figures.landscape import landscape
from cgqbench.figures.momentum import ablation_momentum
from cgqbench.figures.probability import ablation_probability
from cgqbench.figures.run_time import run_time
from cgqbench.record import RecordError, Run, runs
from cgqbench.searches import searches
from cgqbench.summary import Problem, by_problem

__all__ = [
    "ABLATIONS",
    "ablation_bounds",
    "ablation_momentum",
    "ablation_probability",
    "dynamics",
    "every_figure",
    "landscape",
    "run_time",
]

Drawing = Callable[[Sequence[Run], Path], Path]

ABLATIONS: dict[str, Drawing] = {
    "figure3a": ablation_momentum,
    "figure3b": ablation_probability,
    "figure3c": ablation_bounds,
}
"""The figure that an ablation's experiment is drawn as."""


def every_figure(folder: Path, destination: Path) -> list[Path]:
    """Draw all that the records below a folder allow; the files written."""
    written = []
    for problem, methods in by_problem(runs(folder)).items():
        group = [run for method in methods.values() for run in method]
        if not any(run.epochs for run in group):
            continue
        name = destination / _name(problem)
        if problem.experiment in ABLATIONS:
            written.append(ABLATIONS[problem.experiment](group, name.with_suffix(".png")))
            continue
        written.append(dynamics(group, name.with_name(f"{name.name}-dynamics.png")))
        if median_epoch(group) is not None:
            written.append(run_time(group, name.with_name(f"{name.name}-run_time.png")))
    written += [
        landscape(found, destination / f"{found.path.name.removesuffix('.jsonl')}.png")
        for found in searches(folder)
    ]
    if not written:
        raise RecordError(
            f"There is nothing to draw in {folder}: it holds no records. Make some with "
            f"`cgq compare --out {folder}`."
        )
    return written


def _name(problem: Problem) -> str:
    parts = (problem.experiment, problem.dataset, problem.network, f"{problem.epochs}epochs")
    return re.sub(r"[^\w+-]", "_", "-".join(parts))
