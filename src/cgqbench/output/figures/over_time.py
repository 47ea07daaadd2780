"""How training went over time, or over work where the time is not known.

A method that takes longer for a step has to be worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.costs import machines_of
from cgqbench.analysis.curves import BACKWARD, Curve, curve, seconds, work
from cgqbench.analysis.measures import averaged, judged_by
from cgqbench.output.figures.canvas import (
    brief,
    canvas,
    heading,
    legend,
    plain,
    plain_decades,
    positive,
    saved,
    spread_notes,
    title,
)
from cgqbench.output.figures.dynamics import PANELS, draw, focus_accuracy, stroke
from cgqbench.output.palette import styles
from cgqbench.records.reading import Run

Spent = Callable[[Sequence[Run]], list[float]]
"""What runs have spent by the end of each epoch."""


def has_times(comparison: Comparison) -> bool:
    """Whether the seconds of every method are known, and are those of one machine."""
    groups = [group for group in comparison.methods.values() if any(run.epochs for run in group)]
    return len(groups) > 1 and all(map(seconds, groups)) and len(machines_of(comparison.runs)) == 1


def over_time(comparison: Comparison, path: Path) -> Path:
    """Train loss, and what the runs are judged by, over the seconds of training.

    The latter of the averaged weights too, where every method has them: in a panel of its own.
    """
    (machine,) = machines_of(comparison.runs)
    return _over(comparison, path, seconds, "seconds of training", "over time", machine)


def over_work(comparison: Comparison, path: Path) -> Path:
    """The same over the passes through the network, which every machine has the same number of.

    What an optimizer does besides its passes is not in it.
    """
    label = "passes, in epochs of SGD"
    note = f"passes alone, a backward one as {BACKWARD:g} forward ones"
    return _over(comparison, path, work, label, "over the work done", note)


def _over(
    comparison: Comparison, path: Path, spent: Spent, label: str, words: str, note: str
) -> Path:
    quality = judged_by(row for run in comparison.runs for row in run.epochs)
    metrics = ["train_loss", quality]
    drawn = {metric: _curves(comparison, metric) for metric in [*metrics, averaged(quality)]}
    known = [method for method, line in drawn[quality].items() if not line.empty]
    if known and all(not drawn[averaged(quality)][method].empty for method in known):
        metrics.append(averaged(quality))
    figure, axes = canvas(1, len(metrics), (4.5 * len(metrics), 4.1))
    methods, style = comparison.methods, styles(comparison.methods)
    lost = {method for method, runs in methods.items() if all(run.diverged for run in runs)}
    for axis, metric in zip(axes, metrics, strict=True):
        name, scale = PANELS[metric if metric in PANELS else quality]
        name += ", averaged weights" * (metric not in PANELS)
        title(axis, name)
        lines = drawn[metric]
        means = (value for line in lines.values() for value in line.mean if value is not None)
        if scale == "log" and positive(means):
            axis.set_yscale("log")
        for method, line in lines.items():
            places = spent(methods[method])[: len(line.mean)]
            shown = replace(line, mean=line.mean[: len(places)], spread=line.spread[: len(places)])
            draw(axis, shown, style[method], diverged=method in lost, places=places)
        if axis.get_yscale() == "log":
            plain_decades(axis.yaxis)
        if scale == "linear":
            focus_accuracy(axis, name)
        axis.set_xlabel(label)
        axis.set_xlim(left=0.0)
    names = {method: plain(brief(comparison.labels[method])) for method in methods}
    handles = [
        axes[0].plot([], [], **stroke(style[method]), label=name)[0]
        for method, name in names.items()
    ]
    legend(figure, handles)
    gone = ["×: every seed diverged or died"] * bool(lost)
    notes = [*spread_notes(comparison, "shaded"), *gone, note]
    heading(figure, f"{comparison.title}, {words}", "; ".join(notes))
    return saved(figure, path)


def _curves(comparison: Comparison, metric: str) -> dict[str, Curve]:
    return {method: curve(group, metric) for method, group in comparison.methods.items()}
