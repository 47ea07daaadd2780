"""Records → the paper's figures, as PNG files. Nothing here trains."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.costs import costs
from cgqbench.analysis.equal_work import columns
from cgqbench.analysis.findings import Findings
from cgqbench.analysis.paper_columns import paper_columns
from cgqbench.analysis.verdicts import begun
from cgqbench.output.figures.any_rate import any_rate
from cgqbench.output.figures.bounds import BOUNDS, ablation_bounds
from cgqbench.output.figures.ceilings import VARIED, ceiling, ceilings
from cgqbench.output.figures.dynamics import dynamics
from cgqbench.output.figures.landscape import landscape
from cgqbench.output.figures.momentum import ablation_momentum
from cgqbench.output.figures.over_time import has_times, over_time, over_work
from cgqbench.output.figures.paper_map import paper_map
from cgqbench.output.figures.probability import ablation_probability
from cgqbench.output.figures.run_time import run_time
from cgqbench.output.figures.zoo_curves import at_start, over_seconds, over_steps
from cgqbench.output.figures.zoo_profile import profile

Drawing = Callable[[Comparison, Path], Path]

ABLATIONS: dict[str, tuple[Drawing, set[str]]] = {
    "figure3a": (ablation_momentum, {"momentum"}),
    "figure3b": (ablation_probability, {"search_prob"}),
    "figure3c": (ablation_bounds, BOUNDS),
    "any_rate": (any_rate, {"lr"}),
    "ceiling": (ceiling, VARIED),
}
"""The figure that an ablation's experiment is drawn as, and the settings that it varies."""

DYNAMICS = "-dynamics"
PROFILE = "-profile"
TOGETHER: dict[str, dict[str, Callable[[Sequence[Comparison], Path], Path]]] = {
    "ceiling": {"": ceilings},
    "zoo": {
        PROFILE: profile,
        "-steps": over_steps,
        "-seconds": over_seconds,
        "-start": at_start,
    },
}
"""The experiments whose problems share their figures, by what is added to the name of each."""


def every_figure(found: Findings, destination: Path) -> list[Path]:
    """Draw all that the records allow; the files written."""
    written: list[Path] = []
    shared: dict[str, list[Comparison]] = {}
    beside = {column.problem: column for column in paper_columns(found.comparisons)}
    for comparison in found.comparisons:
        experiment = comparison.problem.experiment
        if experiment in TOGETHER and (ablation(comparison) or experiment not in ABLATIONS):
            shared.setdefault(experiment, []).append(comparison)
            continue
        for kind, draw in _drawings(comparison).items():
            path = _free(destination, f"{experiment}-{comparison.name}", kind, written)
            # A schedule shows in how training goes; the times of other runs are not comparable.
            drawn = beside.get(comparison.problem, comparison) if kind == DYNAMICS else comparison
            written.append(draw(drawn, path))
    for experiment, compared in shared.items():
        for kind, together in TOGETHER[experiment].items():
            path = _free(destination, experiment, kind, written)
            written.append(together(compared, path))
    if begun(found.comparisons):
        written.append(paper_map(found.comparisons, _free(destination, "paper", "", written)))
    for column in columns(found.comparisons):
        path = _free(destination, f"work-{column.name}", "", written)
        written.append(over_work(column, path))
    for one in found.searches:
        path = _free(destination, f"landscape-{one.title}", "", written)
        written.append(landscape(one, path))
    return written


def ablation(comparison: Comparison) -> Drawing | None:
    """The figure of an ablation, if that is what was run and there is anything to draw."""
    draw, varied = ABLATIONS.get(comparison.problem.experiment, (None, set()))
    found = any(
        varied <= comparison.settings(method).keys() and any(run.epochs for run in group)
        for method, group in comparison.methods.items()
    )
    return draw if found else None


def _drawings(comparison: Comparison) -> dict[str, Drawing]:
    """The figures of a comparison, by what is added to their names."""
    draw = ablation(comparison)
    if draw is not None:
        return {"": draw}
    found: dict[str, Drawing] = {}
    if any(run.epochs for run in comparison.runs):
        found[DYNAMICS] = dynamics
    if has_times(comparison):
        found["-time"] = over_time
    if costs(comparison):
        found["-run_time"] = run_time
    return found


def _free(folder: Path, name: str, kind: str, taken: list[Path]) -> Path:
    """A path that no other figure has, short enough for every file system."""
    stem = re.sub(r"[^\w.+=]+", "-", name.lower())[:80].strip("-.")
    path, number = folder / f"{stem}{kind}.png", 1
    while path in taken:
        number += 1
        path = folder / f"{stem}-{number}{kind}.png"
    return path
