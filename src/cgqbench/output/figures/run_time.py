"""What an epoch costs: seconds by method (the paper's figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.costs import Cost, costs, machines_of, three_digits
from cgqbench.output.figures.canvas import INK, brief, canvas, heading, plain, saved
from cgqbench.output.palette import Style, styles


def run_time(comparison: Comparison, path: Path) -> Path:
    """A bar for each method: the median epoch, and its ratio to SGD on the same machine."""
    bars = costs(comparison)
    if not bars:
        raise ValueError(
            "These runs have no times. Keep the files NAME.times.jsonl next to the records."
        )
    machines = machines_of(comparison.runs)
    where = machines[0] if len(machines) == 1 else f"{len(machines)} different machines"
    title = comparison.title, f"{comparison.budget}; {where}"
    return seconds_by_method(bars, styles(comparison.methods), title, path)


def seconds_by_method(
    bars: Sequence[Cost], style: Mapping[str, Style], title: Sequence[str], path: Path
) -> Path:
    """The bars, wherever their costs are from."""
    figure, (axis,) = canvas(1, 1, (9.0, 1.5 + 0.36 * len(bars)))
    axis.barh(
        range(len(bars)),
        [bar.seconds for bar in bars],
        color=[style[bar.method].colour for bar in bars],
        height=0.66,
    )
    axis.set_yticks(range(len(bars)), [plain(brief(bar.label)) for bar in bars])
    for place, bar in enumerate(bars):
        ratio = "" if bar.ratio is None else f"   {bar.ratio:.2f} × SGD"
        axis.annotate(
            f"{three_digits(bar.seconds)} s{ratio}",
            (bar.seconds, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=INK,
        )
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.22)
    axis.set_xlabel("training seconds per epoch (median)")
    heading(figure, *title)
    return saved(figure, path)
