"""The ablation over the relative ceiling ρ, the search and the average: what each is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from cgqbench.analysis import measures
from cgqbench.analysis.chance import dead
from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.summary import Entry, summary
from cgqbench.methods import METHODS
from cgqbench.output.figures.canvas import (
    canvas,
    edge_marks,
    heading,
    legend,
    no_values,
    note,
    saved,
    title,
    whiskers,
)
from cgqbench.output.palette import STYLES

VARIED = {"max_relative_step", "search_prob"}
"""The settings that place a method on a panel."""


FAR_POINTS, FAR = 30.0, 1.6
"""How far from the best an axis reaches: in points of accuracy, and times a loss."""


class Kind(NamedTuple):
    """With the search or without it."""

    words: str
    colour: str
    mark: str
    size: float
    """Of marks and lines: where two lines are one, the lower shows around the upper."""


SEARCHED = Kind("search on", STYLES["search"].colour, "o", 1.0)
UNSEARCHED = Kind("search off", STYLES["scgq"].colour, "s", 1.5)
KINDS = (SEARCHED, UNSEARCHED)


class Weights(NamedTuple):
    """Which weights are tested."""

    prefix: str
    words: str
    dash: Any


AVERAGED = Weights("average_", "averaged", "solid")
FINAL = Weights("", "final", (0, (3.5, 2.0)))


@dataclass(frozen=True, eq=False)
class Point:
    """The runs at one ceiling; the entry is of those seeds that learned."""

    ceiling: float
    kind: Kind
    entry: Entry
    seeds: int
    lost: int


def ceilings(compared: Sequence[Comparison], path: Path) -> Path:
    """A panel for each problem: test accuracy, or else test loss, over ρ.

    Four lines: with the search and without it, of the averaged weights and of the final ones. A
    seed that died or diverged is a cross at the worse edge, and in no mean.
    """
    figure, axes = canvas(1, len(compared), (max(9.0, 4.2 * len(compared)), 4.4))
    lost: list[str] = []
    cut = False
    for axis, comparison in zip(axes, compared, strict=True):
        points = _points(comparison)
        title(axis, comparison.name)
        note(axis, comparison.budget)
        cut |= _panel(axis, points)
        lost += _lost(comparison.name, points)
    legend(figure, [_handle(kind, weights) for kind in KINDS for weights in (AVERAGED, FINAL)])
    default = METHODS["search"].settings["max_relative_step"]
    notes = [f"upright line: default ρ = {default:g}"]
    if any(len(group) > 1 for one in compared for group in one.methods.values()):
        notes.append("whiskers: ± standard deviation over seeds")
    if cut:
        notes.append("triangles: off the axis")
    lines = ["What the relative ceiling ρ, the search and the average are worth", "; ".join(notes)]
    if lost:
        lines.append(f"×: seeds dead or diverged, in no mean: {'; '.join(lost)}")
    heading(figure, *lines)
    return saved(figure, path)


def ceiling(comparison: Comparison, path: Path) -> Path:
    """The same of one problem alone."""
    return ceilings([comparison], path)


def _points(comparison: Comparison) -> list[Point]:
    """In order of ρ; a method that lacks one of the settings has no place."""
    living = {
        method: [run for run in group if not dead(run)]
        for method, group in comparison.methods.items()
    }
    found = []
    for entry in summary(replace(comparison, methods=living)):
        settings = comparison.settings(entry.method)
        if settings.keys() >= VARIED:
            kind = SEARCHED if settings["search_prob"] else UNSEARCHED
            seeds = len(comparison.methods[entry.method])
            lost = seeds - len(living[entry.method])
            found.append(Point(float(settings["max_relative_step"]), kind, entry, seeds, lost))
    return sorted(found, key=lambda point: point.ceiling)


def _lost(name: str, points: list[Point]) -> list[str]:
    """What crosses mean, in words: one text for each kind that has any."""
    found = []
    for kind in KINDS:
        own = [point for point in points if point.kind is kind and point.lost]
        at = ", ".join(f"{point.ceiling:g} ({point.lost} of {point.seeds})" for point in own)
        found += [f"{name}, {kind.words}, at {at}"] * bool(own)
    return found


def _panel(axis: Axes, points: list[Point]) -> bool:
    """Draw a problem; whether anything lies off the axis."""
    metric = measures.judged_by(point.entry.values for point in points)
    ticks = sorted({point.ceiling for point in points})
    axis.set(xscale="log", xlim=(ticks[0] / 1.2, ticks[-1] * 1.2))
    axis.axvline(METHODS["search"].settings["max_relative_step"], color="#b6bcc4", linewidth=1.0)
    for kind in reversed(KINDS):
        for weights in (FINAL, AVERAGED):
            own = [point for point in points if point.kind is kind]
            _line(axis, own, weights.prefix + metric, kind, weights)
    # Room for the marks at the edge, which have no height of their own.
    axis.margins(y=0.13 if any(point.lost for point in points) else 0.06)
    axis.set_xticks(ticks, [f"{tick:g}".removeprefix("0") for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("ρ, the ceiling of a step's relative length")
    axis.set_ylabel(measures.name(metric))
    if not any(metric in point.entry.values for point in points):
        no_values(axis, axis.yaxis)
    return _edge(axis, points, metric)


def _edge(axis: Axes, points: list[Point], metric: str) -> bool:
    """Cut the axis at what is far off the best, and mark there what lies beyond or was lost."""
    names = metric, measures.averaged(metric)
    means = {
        point: [point.entry.values[name].mean for name in names if name in point.entry.values]
        for point in points
    }
    known = [mean for found in means.values() for mean in found]
    accuracy = measures.higher_is_better(metric)
    best = measures.best(metric, known or [0.0])
    cut = best - FAR_POINTS if accuracy else best * FAR
    off = {
        point
        for point, found in means.items()
        if any(mean < cut if accuracy else mean > cut for mean in found)
    }
    if off:
        axis.set_ylim(*((cut, None) if accuracy else (None, cut)))
    beyond = [(point, "v" if accuracy else "^") for point in points if point in off]
    lost = [(point, "x") for point in points if point.lost]
    rows: Counter[float] = Counter()  # from the edge inwards; triangles first: they point out
    for point, mark in beyond + lost:
        height = 0.03 + 0.05 * rows[point.ceiling]
        rows[point.ceiling] += 1
        at = height if accuracy else 1 - height
        edge_marks(axis, [point.ceiling], at, mark, point.kind.colour)
    return bool(off)


def _line(axis: Axes, points: list[Point], metric: str, kind: Kind, weights: Weights) -> None:
    known = [point for point in points if metric in point.entry.values]
    if known:
        places = [point.ceiling for point in known]
        values = [point.entry.values[metric] for point in known]
        stroke = _stroke(kind, weights)
        whiskers(axis, places, values, **stroke, elinewidth=1.0, capsize=2.5)


def _handle(kind: Kind, weights: Weights) -> Line2D:
    return Line2D([], [], **_stroke(kind, weights), label=f"{kind.words}, {weights.words}")


def _stroke(kind: Kind, weights: Weights) -> dict[str, Any]:
    hollow = weights is FINAL
    return {
        "color": kind.colour,
        "marker": kind.mark,
        "markersize": 4.5 * kind.size,
        "markerfacecolor": "white" if hollow else kind.colour,
        "linestyle": weights.dash,
        "linewidth": (1.2 if hollow else 1.8) * kind.size,
    }
