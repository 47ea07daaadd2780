"""The zoo's curves, a small panel for each task: over steps, over time, and the first steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.curves import curve, seconds
from cgqbench.analysis.measures import higher_is_better
from cgqbench.analysis.milestones import WINDOW, smoothed
from cgqbench.analysis.standings import REFERENCES, Result, Standing, standings
from cgqbench.output.figures.canvas import (
    canvas,
    heading,
    legend,
    no_values,
    note,
    numbers,
    plain_decades,
    positive,
    saved,
    title,
)
from cgqbench.output.figures.zoo_lines import Stroke, strokes

COLUMNS = 4
FIRST = 500
"""The steps that are shown of the start."""
ROOM = 1.2
"""How far a panel reaches, in the largest value of the tuned references."""
WIDE = 5.0
"""From this ratio on of its ends, a panel has a logarithmic axis."""

Line = tuple[Sequence[float], Sequence[float | None]]
TESTED = (
    "Test loss or, where there is an accuracy, test error (%), of the weights that a method is "
    "judged by; mean over seeds. Above its panel a line is worse than tuned AdamW ever was."
)


def over_steps(compared: Sequence[Comparison], path: Path) -> Path:
    """The test loss or error over the steps."""
    return _panels(compared, path, _tested_over_steps, "steps", "The zoo over steps", TESTED)


def over_seconds(compared: Sequence[Comparison], path: Path) -> Path:
    """The test loss or error over the seconds of training."""
    return _panels(
        compared, path, _tested_over_seconds, "seconds of training", "The zoo over time", TESTED
    )


def at_start(compared: Sequence[Comparison], path: Path) -> Path:
    """The train loss over the first steps."""
    words = f"Train loss of the first {FIRST} steps, mean over about {WINDOW} and over seeds."
    return _panels(compared, path, _trained, "steps", "The zoo's first steps", words)


def _panels(
    compared: Sequence[Comparison],
    path: Path,
    line_of: Callable[[Standing, Result], Line],
    along: str,
    *words: str,
) -> Path:
    found = standings(compared)
    drawn = strokes(found)
    columns = min(COLUMNS, len(found))
    rows = -(-len(found) // columns)
    figure, axes = canvas(rows, columns, (3.0 * max(columns, 3), 1.8 + 2.1 * rows))
    for axis, standing in zip(axes, found, strict=False):
        title(axis, standing.title)
        note(axis, standing.part)
        results = standing.results
        lines = {name: line_of(standing, results[name]) for name in drawn if name in results}
        _draw(axis, {name: line for name, line in lines.items() if line[0]}, drawn)
    for axis in axes[len(found) :]:
        axis.remove()
    for axis in axes[max(0, len(found) - columns) : len(found)]:
        axis.set_xlabel(along)
    legend(figure, [Line2D([], [], **line) for line in drawn.values()])
    heading(figure, *words)
    return saved(figure, path)


def _draw(axis: Axes, lines: dict[str, Line], drawn: dict[str, Stroke]) -> None:
    values = [value for _, heights in lines.values() for value in heights if value is not None]
    if not values:
        no_values(axis, axis.yaxis)
        return
    for name, (places, heights) in lines.items():
        axis.plot(places, numbers(heights), **drawn[name])
    tuned = [
        value
        for name in REFERENCES
        if name in lines
        for value in lines[name][1]
        if value is not None
    ]
    lowest, highest = min(values), ROOM * max(tuned or values)
    if positive(values) and highest > WIDE * lowest:
        axis.set(yscale="log", ylim=(lowest / 1.1, highest))
        plain_decades(axis.yaxis)
    else:
        axis.set_ylim(lowest - 0.05 * (highest - lowest), highest)


def _tested(standing: Standing, result: Result) -> list[float | None]:
    means = curve(result.runs, result.metric).mean
    if not higher_is_better(standing.measure):
        return means
    return [None if mean is None else 100 - mean for mean in means]


def _tested_over_steps(standing: Standing, result: Result) -> Line:
    heights = _tested(standing, result)
    batches = result.runs[0].header["batches"]
    return [batches * epoch for epoch in range(1, len(heights) + 1)], heights


def _tested_over_seconds(standing: Standing, result: Result) -> Line:
    heights, places = _tested(standing, result), seconds(result.runs)
    shared = min(len(heights), len(places))
    return places[:shared], heights[:shared]


def _trained(standing: Standing, result: Result) -> Line:
    steps, losses = smoothed(result.runs)
    early = sum(step <= FIRST for step in steps)
    return steps[:early], losses[:early]
