"""The look that all figures share, without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from cgqbench.record import Run
from cgqbench.summary import by_problem

INK, QUIET, FAINT = "#24292f", "#57606a", "#e4e7eb"
DPI = 130


def canvas(
    rows: int, columns: int, size: tuple[float, float], **subplots: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of `size` inches and its panels, row by row."""
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False, **subplots)
    axes = [axis for row in panels for axis in row]
    for axis in axes:
        _quieten(axis)
    return figure, axes


def saved(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG; the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The default metadata names the version of matplotlib: the same records, the same bytes.
    figure.savefig(path, dpi=DPI, format="png", metadata={"Software": None})
    return path


def title(axis: Axes, text: str) -> None:
    """A panel's title, at its left."""
    axis.set_title(plain(text), loc="left", fontsize=10, color=INK, fontweight="bold")


def heading(figure: Figure, text: str) -> None:
    """The figure's title."""
    figure.suptitle(plain(text), x=0.01, ha="left", fontsize=11, color=QUIET)


def plain(text: str) -> str:
    """Text that is not read as a formula."""
    return text.replace("$", r"\$")


def plain_decades(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers: 0.01, 0.02, 0.05, 0.1."""
    low, high = sorted(axis.get_view_interval())
    wide = high > 60 * low > 0
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def one_problem(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each method, provided that they are all of one problem."""
    problems = by_problem(runs)
    if len(problems) != 1:
        raise ValueError(
            f"A figure shows one problem, and these runs are of {len(problems)}. Choose one with "
            "cgqbench.summary.by_problem."
        )
    return next(iter(problems.values()))


def _quieten(axis: Axes) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color("#b6bcc4")
    axis.tick_params(which="both", colors=QUIET, labelsize=8.5, length=3)
    axis.xaxis.label.set(color=QUIET, fontsize=9)
    axis.yaxis.label.set(color=QUIET, fontsize=9)
    axis.grid(color=FAINT, linewidth=0.7)
    axis.set_axisbelow(True)
