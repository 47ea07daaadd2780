"""The zoo's performance profile: on which share of the tasks a method is near the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from cgqbench.analysis.comparison import Comparison, several
from cgqbench.analysis.standings import REFERENCES, Standing, parts, standings
from cgqbench.output.figures.canvas import INK, canvas, heading, legend, plain_decades, saved, title
from cgqbench.output.figures.zoo_lines import Stroke, strokes

NEAREST, FARTHEST = 0.1, 100.0
"""The ends of the axis, in percent above the best."""
TUNED: Stroke = {
    "color": INK,
    "linestyle": (0, (1.0, 1.5)),
    "linewidth": 1.2,
    "label": "AdamW, best rate and schedule",
}


def profile(compared: Sequence[Comparison], path: Path) -> Path:
    """A panel for each part and one for all: the share of tasks within a distance of the best."""
    found = standings(compared)
    drawn = {name: line for name, line in strokes(found).items() if name not in REFERENCES}
    panels = parts(found)
    figure, axes = canvas(1, len(panels), (4.5 * max(len(panels), 2), 4.4), sharey=True)
    for axis, (part, members) in zip(axes, panels.items(), strict=True):
        title(axis, f"{part.capitalize()}: {several(len(members), 'task')}")
        _draw(axis, [_tuned(one) for one in members], TUNED)
        for name, line in drawn.items():
            known = [one for one in members if name in one.untuned]
            _draw(axis, [one.factor(one.untuned[name]) for one in known], line)
        axis.set(xscale="log", xlim=(NEAREST, FARTHEST), ylim=(-0.02, 1.03))
        axis.set_xlabel("above the best by at most (%)")
        plain_decades(axis.xaxis)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes[0].set_ylabel("share of the tasks")
    legend(figure, [Line2D([], [], **line) for line in (TUNED, *drawn.values())])
    heading(
        figure,
        "The zoo: how often a method is near the best",
        "The share of the tasks on which a method's test loss or, where there is an accuracy, test "
        "error is above the best of all methods by no more than so many percent: the higher, the "
        "better. A method of which a seed died is never near.",
    )
    return saved(figure, path)


def _tuned(standing: Standing) -> float:
    reference = standing.reference
    return math.inf if reference is None else standing.factor(reference)


def _draw(axis: Axes, factors: Sequence[float], line: Stroke) -> None:
    """The share that is within each distance, as stairs."""
    if not factors:
        return
    above = sorted(max(100 * (factor - 1), NEAREST) for factor in factors)
    near = [percent for percent in above if percent <= FARTHEST]
    places = [NEAREST, *near, FARTHEST]
    shares = [number / len(factors) for number in range(len(near) + 1)]
    axis.step(places, [*shares, shares[-1]], where="post", **line)
