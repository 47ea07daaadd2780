"""The ablation over the share of batches searched (the paper's figure 3b)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from cgqbench.figures.canvas import (
    QUIET,
    canvas,
    heading,
    one_problem,
    plain,
    plain_decades,
    saved,
    title,
)
from cgqbench.palette import STYLES, Style, styles
from cgqbench.record import Run
from cgqbench.summary import Entry, problem_of, summary


def ablation_probability(runs: Sequence[Run], path: Path) -> Path:
    """Train loss and test accuracy over the search probability p, with their spread.

    A method that has no such probability, SGD above all, is a level to compare with.
    """
    methods = one_problem(runs)
    settings = {method: group[0].header.get("settings", {}) for method, group in methods.items()}
    found = summary(runs)
    swept = [
        (float(settings[entry.method]["search_prob"]), entry)
        for entry in found
        if "search_prob" in settings[entry.method]
    ]
    swept.sort(key=lambda point: point[0])
    levels = [entry for entry in found if "search_prob" not in settings[entry.method]]
    style = styles(methods)
    figure, axes = canvas(1, 2, (9.0, 3.6))
    for axis, metric, name in zip(
        axes, ("train_loss", "test_accuracy"), ("Train loss", "Test accuracy (%)"), strict=True
    ):
        title(axis, name)
        for entry in levels:
            _level(axis, entry, metric, style[entry.method])
        _sweep(axis, swept, metric)
        axis.set_xlabel("share of batches searched, p")
    if all(entry.values["train_loss"].mean > 0 for entry in found if "train_loss" in entry.values):
        axes[0].set_yscale("log")
        plain_decades(axes[0].yaxis)
    if levels:
        figure.legend(
            *axes[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=5,
            frameon=False,
            fontsize=9,
        )
    heading(figure, f"Search probability, {problem_of(runs[0].header).title}")
    return saved(figure, path)


def _sweep(axis: Axes, swept: list[tuple[float, Entry]], metric: str) -> None:
    points = [(at, entry.values[metric]) for at, entry in swept if metric in entry.values]
    axis.errorbar(
        [at for at, _ in points],
        [value.mean for _, value in points],
        yerr=[value.spread or 0.0 for _, value in points],
        fmt="o-",
        color=STYLES["scgq"].colour,
        linewidth=1.7,
        capsize=3,
        ms=5,
        label="sCGQ",
    )
    for at, entry in swept:
        if entry.diverged:
            axis.annotate(
                f"{entry.diverged} of {entry.seeds}\ndiverged",
                (at, 0.97),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="top",
                fontsize=8,
                color=QUIET,
            )
    if swept:
        # Also where every seed diverged, so that the note about it lies within the panel.
        axis.set_xlim(swept[0][0] - 0.04, swept[-1][0] + 0.04)


def _level(axis: Axes, entry: Entry, metric: str, style: Style) -> None:
    value = entry.values.get(metric)
    if value is None:
        return
    spread = value.spread or 0.0
    axis.axhline(value.mean, color=style.colour, linewidth=1.4, label=plain(entry.label))
    axis.axhspan(
        value.mean - spread, value.mean + spread, color=style.colour, alpha=0.15, linewidth=0
    )
