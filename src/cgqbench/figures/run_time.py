"""What an epoch costs: seconds by method (the paper's figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cgqbench.curves import median_epoch
from cgqbench.figures.canvas import INK, canvas, heading, one_problem, plain, saved
from cgqbench.palette import styles
from cgqbench.record import Run
from cgqbench.summary import label_of, problem_of


def run_time(runs: Sequence[Run], path: Path) -> Path:
    """A bar for each method: the median epoch, and its ratio to SGD where SGD was run."""
    methods = one_problem(runs)
    medians = {method: median_epoch(group) for method, group in methods.items()}
    times = {method: value for method, value in medians.items() if value is not None}
    if not times:
        raise ValueError(
            "These runs have no times. Keep the files NAME.times.jsonl next to the records."
        )
    figure, (axis,) = canvas(1, 1, (9.0, 1.3 + 0.36 * len(times)))
    style = styles(methods)
    axis.barh(
        [plain(label_of(methods[method][0].header)) for method in times],
        list(times.values()),
        color=[style[method].colour for method in times],
        height=0.66,
    )
    for place, seconds in enumerate(times.values()):
        ratio = f"   {seconds / times['sgd']:.2f} × SGD" if times.get("sgd") else ""
        axis.annotate(
            f"{seconds:.3g} s{ratio}",
            (seconds, place),
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
    machines = dict.fromkeys(str(run.header.get("hardware") or "unknown machine") for run in runs)
    heading(figure, f"{problem_of(runs[0].header).title}, {' and '.join(machines)}")
    return saved(figure, path)
