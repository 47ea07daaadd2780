"""How training went: loss, accuracy, step and momentum over the epochs (the paper's figure 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.curves import Curve, curve
from cgqbench.analysis.measures import judged_by
from cgqbench.output.figures.canvas import (
    brief,
    canvas,
    heading,
    legend,
    no_values,
    numbers,
    plain,
    plain_decades,
    positive,
    saved,
    spread_notes,
    title,
)
from cgqbench.output.palette import Style, styles

PANELS = {
    "train_loss": ("Train loss", "log"),
    "test_accuracy": ("Test accuracy (%)", "linear"),
    "test_loss": ("Test loss", "log"),
    "step_size": ("Step size", "log"),
    "momentum": ("Momentum", "linear"),
}
"""By metric: its title and the scale of its axis."""


def dynamics(comparison: Comparison, path: Path) -> Path:
    """Four panels; mean, shaded standard deviation over seeds, × where all diverged or died."""
    methods = comparison.methods
    style = styles(methods)
    lost = {method for method, group in methods.items() if all(run.diverged for run in group)}
    figure, axes = canvas(2, 2, (9.0, 6.6))
    quality = judged_by(row for run in comparison.runs for row in run.epochs)
    metrics = "train_loss", quality, "step_size", "momentum"
    for axis, metric in zip(axes, metrics, strict=True):
        name, scale = PANELS[metric]
        drawn = {method: curve(group, metric) for method, group in methods.items()}
        title(axis, name)
        axis.set_xticks(epoch_ticks(max(len(line.mean) for line in drawn.values())))
        means = (value for line in drawn.values() for value in line.mean if value is not None)
        if scale == "log" and positive(means):
            axis.set_yscale("log")
        for method, line in drawn.items():
            draw(axis, line, style[method], diverged=method in lost)
        if axis.get_yscale() == "log":
            plain_decades(axis.yaxis)
        if all(line.empty for line in drawn.values()):
            no_values(axis, axis.yaxis)
        if metric == "test_accuracy":
            focus_accuracy(axis)
    for axis in axes[2:]:
        axis.set_xlabel("epoch")
    names = {method: plain(brief(comparison.labels[method])) for method in methods}
    legend(
        figure,
        [
            axes[0].plot([], [], **stroke(style[method]), label=names[method])[0]
            for method in methods
        ],
    )
    notes = [*spread_notes(comparison, "shaded"), *["×: every seed diverged or died"] * bool(lost)]
    heading(figure, comparison.title, "; ".join(notes))
    return saved(figure, path)


def epoch_ticks(last: int) -> list[int]:
    """Whole epochs to label: the first, the last, and round ones between them.

    >>> epoch_ticks(1), epoch_ticks(10), epoch_ticks(21)
    ([1], [1, 2, 4, 6, 8, 10], [1, 5, 10, 15, 21])
    """
    step = next(size for power in range(9) for size in _round(power) if last <= 6 * size)
    return sorted(
        {1, *(at for at in range(step, last, step) if at <= last - step / 2), max(1, last)}
    )


def _round(power: int) -> tuple[int, int, int]:
    return 10**power, 2 * 10**power, 5 * 10**power


def draw(
    axis: Axes,
    line: Curve,
    style: Style,
    *,
    diverged: bool,
    places: Sequence[float] | None = None,
) -> None:
    """A curve with its spread, at these places; None: at its epochs."""
    if line.empty:
        return
    mean, spread = numbers(line.mean), np.nan_to_num(numbers(line.spread))
    epochs = np.arange(1, len(mean) + 1) if places is None else np.asarray(places)
    axis.plot(epochs, mean, **stroke(style))
    low = mean - spread
    if axis.get_yscale() == "log":
        # A spread wider than the mean has no lower edge on this scale: it ends at a tenth.
        low = np.maximum(low, mean / 10)
    if spread.any():
        axis.fill_between(epochs, low, mean + spread, color=style.colour, alpha=0.15, linewidth=0)
    if diverged or len(mean) == 1:
        axis.plot(epochs[-1:], mean[-1:], "x" if diverged else "o", color=style.colour, ms=5)


def focus_accuracy(axis: Axes, name: str = PANELS["test_accuracy"][0]) -> None:
    """Show the upper part: the first epochs and failures would flatten everything of interest."""
    heights = [np.asarray(line.get_ydata(), dtype=float) for line in axis.get_lines()]
    heights = [height[np.isfinite(height)] for height in heights]
    heights = [height for height in heights if len(height)]
    if not heights:
        return
    top, bottom = (float(edge(np.concatenate(heights))) for edge in (np.max, np.min))
    good = [float(height[-1]) for height in heights if height[-1] > top - 25]
    floor = min([*good, float(np.median(np.concatenate(heights)))])  # all may have fallen back
    margin = max(0.5, 0.6 * (top - floor))
    cut = math.floor(floor - margin)
    axis.set_ylim(max(bottom - 0.3, cut), min(100.3, top + 0.12 * margin + 0.2))
    if bottom < cut:
        title(axis, f"{name}, axis cut at {cut}")


def stroke(style: Style) -> dict[str, Any]:
    """How the lines of a method look."""
    dash = (0, style.dash) if style.dash else "solid"
    return {"color": style.colour, "linestyle": dash, "linewidth": 1.7}
