"""How training went: loss, accuracy, step and momentum over the epochs (the paper's figure 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from cgqbench.curves import Curve, curve
from cgqbench.figures.canvas import (
    canvas,
    heading,
    one_problem,
    plain,
    plain_decades,
    saved,
    title,
)
from cgqbench.palette import Style, styles
from cgqbench.record import Run
from cgqbench.summary import label_of, problem_of

PANELS = (
    ("train_loss", "Train loss", "log"),
    ("test_accuracy", "Test accuracy (%)", "linear"),
    ("step_size", "Learning rate", "log"),
    ("momentum", "Momentum", "linear"),
)


def dynamics(runs: Sequence[Run], path: Path) -> Path:
    """Four panels; mean line and shaded standard deviation over seeds, × where all diverged."""
    methods = one_problem(runs)
    style = styles(methods)
    figure, axes = canvas(2, 2, (9.0, 6.4))
    for axis, (metric, name, scale) in zip(axes, _panels(runs), strict=True):
        drawn = {method: curve(group, metric) for method, group in methods.items()}
        title(axis, name)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if scale == "log" and _positive(drawn.values()):
            axis.set_yscale("log")
        for method, line in drawn.items():
            lost = all(run.diverged for run in methods[method])
            _draw(axis, line, style[method], lost)
        if axis.get_yscale() == "log":
            plain_decades(axis.yaxis)
    for axis in axes[2:]:
        axis.set_xlabel("epoch")
    if _classifies(runs):
        _focus_accuracy(axes[1])
    handles = [
        axes[0].plot([], [], **_stroke(style[method]), label=plain(label_of(group[0].header)))[0]
        for method, group in methods.items()
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(5, len(handles)),
        frameon=False,
        fontsize=9,
        handlelength=2.6,
    )
    seeds = max(len(group) for group in methods.values())
    problem = problem_of(runs[0].header)
    heading(figure, f"{problem.title}, {seeds} seed{'s' * (seeds != 1)}")
    return saved(figure, path)


def _panels(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """The four; a task that is no classification has a test loss in place of the accuracy."""
    if _classifies(runs):
        return list(PANELS)
    return [PANELS[0], ("test_loss", "Test loss", "log"), *PANELS[2:]]


def _classifies(runs: Sequence[Run]) -> bool:
    return any(row.get("test_accuracy") is not None for run in runs for row in run.epochs)


def _draw(axis: Axes, line: Curve, style: Style, diverged: bool) -> None:
    if line.empty:
        return
    mean, spread = _numbers(line.mean), np.nan_to_num(_numbers(line.spread))
    epochs = np.arange(1, len(mean) + 1)
    axis.plot(epochs, mean, **_stroke(style))
    low = mean - spread
    if axis.get_yscale() == "log":
        # A spread wider than the mean has no lower edge on this scale: it ends at a tenth.
        low = np.maximum(low, mean / 10)
    axis.fill_between(epochs, low, mean + spread, color=style.colour, alpha=0.15, linewidth=0)
    if diverged or len(mean) == 1:
        axis.plot(epochs[-1:], mean[-1:], "x" if diverged else "o", color=style.colour, ms=5)


def _focus_accuracy(axis: Axes) -> None:
    """Show the upper part: the first epochs and failures would flatten everything of interest."""
    heights = [np.asarray(line.get_ydata(), dtype=float) for line in axis.get_lines()]
    heights = [height[np.isfinite(height)] for height in heights]
    ends = [float(height[-1]) for height in heights if len(height)]
    if not ends:
        return
    top = max(float(height.max()) for height in heights if len(height))
    good = [end for end in ends if end > top - 25]
    floor = min(min(good), float(np.median(np.concatenate(heights))))
    margin = max(0.5, 0.6 * (top - floor))
    bottom = min(float(height.min()) for height in heights if len(height))
    axis.set_ylim(max(bottom - 0.3, floor - margin), min(100.3, top + 0.12 * margin + 0.2))


def _stroke(style: Style) -> dict[str, Any]:
    dash = (0, style.dash) if style.dash else "solid"
    return {"color": style.colour, "linestyle": dash, "linewidth": 1.7}


def _numbers(values: list[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _positive(lines: Iterable[Curve]) -> bool:
    values = [value for line in lines for value in line.mean if value is not None]
    return bool(values) and min(values) > 0
