"""The ablation over the share of batches searched (the paper's figure 3b)."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.summary import Entry, means, summary
from cgqbench.output.figures.canvas import (
    QUIET,
    brief,
    canvas,
    heading,
    legend,
    no_values,
    plain,
    plain_decades,
    positive,
    saved,
    spread_notes,
    title,
    whiskers,
)
from cgqbench.output.palette import STYLES, Style, styles


def ablation_probability(comparison: Comparison, path: Path) -> Path:
    """Train loss and test accuracy over the search probability p, with their spread.

    A method that has no such probability, SGD above all, is a level to compare with.
    """
    found = summary(comparison)
    settings = {entry.method: comparison.settings(entry.method) for entry in found}
    swept = [
        (float(settings[entry.method]["search_prob"]), entry)
        for entry in found
        if "search_prob" in settings[entry.method]
    ]
    swept.sort(key=lambda point: point[0])
    levels = [entry for entry in found if "search_prob" not in settings[entry.method]]
    style = styles(comparison.methods)
    figure, axes = canvas(1, 2, (9.0, 3.9))
    for axis, metric, name in zip(
        axes, ("train_loss", "test_accuracy"), ("Train loss", "Test accuracy (%)"), strict=True
    ):
        title(axis, name)
        for entry in levels:
            _level(axis, entry, metric, style[entry.method])
        _sweep(axis, swept, metric)
        axis.set_xlabel("share of batches searched, p")
        if not any(metric in entry.values for entry in found):
            no_values(axis, axis.yaxis)
    if positive(means(found, "train_loss")):
        axes[0].set_yscale("log")
        plain_decades(axes[0].yaxis)
    handles, _ = axes[0].get_legend_handles_labels()
    if len(handles) > 1:
        legend(figure, handles)
    marks = "whiskers and shading" if levels else "whiskers"
    notes = ["; ".join(spread_notes(comparison, marks))]
    lost = [f"p={at:g} ({one.diverged} of {one.seeds})" for at, one in swept if one.diverged]
    if lost:
        notes.append(f"×: seeds diverged, at {', '.join(lost)}")
    heading(figure, f"Search probability: {comparison.title}", *notes)
    return saved(figure, path)


def _sweep(axis: Axes, swept: list[tuple[float, Entry]], metric: str) -> None:
    points = [(at, entry.values[metric]) for at, entry in swept if metric in entry.values]
    if points:
        places, values = zip(*points, strict=True)
        stroke = {"color": STYLES["scgq"].colour, "linewidth": 1.7, "fmt": "o-", "ms": 5}
        whiskers(axis, places, values, **stroke, capsize=3, label="sCGQ")
    lost = [at for at, entry in swept if entry.diverged]
    # At the upper edge, whatever the scale: the loss of a diverged run has no height of its own.
    axis.plot(
        lost, [0.97] * len(lost), "x", color=QUIET, ms=5, transform=axis.get_xaxis_transform()
    )
    if swept:
        axis.set_xlim(swept[0][0] - 0.04, swept[-1][0] + 0.04)


def _level(axis: Axes, entry: Entry, metric: str, style: Style) -> None:
    value = entry.values.get(metric)
    if value is None:
        return
    spread = value.spread or 0.0
    axis.axhline(value.mean, color=style.colour, linewidth=1.4, label=plain(brief(entry.label)))
    axis.axhspan(
        value.mean - spread, value.mean + spread, color=style.colour, alpha=0.15, linewidth=0
    )
