"""The look that all figures share, without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.spread import Statistic

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


def note(axis: Axes, text: str) -> None:
    """A quiet word at the right end of a panel's title."""
    axis.set_title(plain(text), loc="right", fontsize=8.5, color=QUIET)


def heading(figure: Figure, *lines: str) -> None:
    """The figure's title, and in further lines how it is to be read."""
    wrapped = [part for line in lines for part in wrap(brief(line, 300), 100)]
    figure.suptitle(plain("\n".join(wrapped)), x=0.01, ha="left", fontsize=10, color=QUIET)


def spread_notes(comparison: Comparison, what: str) -> list[str]:
    """The budget and, where there is more than one seed, what shows the spread over seeds."""
    alone = all(len(group) == 1 for group in comparison.methods.values())
    spread = [] if alone else [f"{what}: ± standard deviation over seeds"]
    return [comparison.budget, *spread]


def no_values(axes: Axes, along: Axis) -> None:
    """Say that a panel is empty; numbers along its axis would mean nothing."""
    along.set_ticks([])
    axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", color=QUIET)


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """A legend below the panels, in as many columns as its longest label leaves room for.

    The figure grows with it, so that many methods leave the panels as they are.
    """
    longest = max(len(str(handle.get_label())) for handle in handles)
    # At this size a letter is about 0.075 inches wide, and a line with its gaps 0.7.
    columns = int(figure.get_figwidth() / (0.075 * longest + 0.7))
    columns = max(1, min(5, columns, len(handles)))
    rows = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, rows - 2))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        handlelength=2.6,
    )


def edge_marks(axis: Axes, places: Sequence[float], height: float, mark: str, colour: str) -> None:
    """Marks at a height that is a share of the panel's, for what has no place on its axis."""
    heights = [height] * len(places)
    at = axis.get_xaxis_transform()
    axis.plot(places, heights, mark, color=colour, ms=6, mew=1.6, transform=at)


def whiskers(
    axis: Axes, places: Sequence[float], values: Sequence[Statistic], **stroke: Any
) -> None:
    """A line through means, with a whisker for the spread of each."""
    axis.errorbar(
        places,
        [value.mean for value in values],
        yerr=[value.spread or 0.0 for value in values],
        **stroke,
    )


def numbers(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Values to draw, with a gap where there is none."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def brief(text: str, most: int = 60) -> str:
    """Text that is not longer than there is room for.

    >>> brief("a method with a long name", 15)
    'a method with …'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def plain(text: str) -> str:
    """Text that is not read as a formula."""
    return text.replace("$", r"\$")


def positive(values: Iterable[float]) -> bool:
    """Whether there are values, and a logarithmic axis can show them all."""
    return min(values, default=0.0) > 0


def plain_decades(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers: 0.01, 0.02, 0.05, 0.1."""
    low, high = sorted(axis.get_view_interval())
    wide = high > 1000 * low > 0
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


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
