"""The ablation over momentum rules and fixed momenta (the paper's figure 3a)."""

from __future__ import annotations

import statistics
from pathlib import Path

from matplotlib.axes import Axes

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.measures import shown_with_spread
from cgqbench.analysis.summary import Entry, means, summary
from cgqbench.output.figures.canvas import (
    brief,
    canvas,
    heading,
    no_values,
    plain,
    plain_decades,
    positive,
    saved,
    spread_notes,
    title,
)
from cgqbench.output.palette import STYLES

RULES = {
    "polak_ribiere": "Polak–Ribière",
    "fletcher_reeves": "Fletcher–Reeves",
    "hestenes_stiefel": "Hestenes–Stiefel",
    "dai_yuan": "Dai–Yuan",
}


def ablation_momentum(comparison: Comparison, path: Path) -> Path:
    """Train loss and test accuracy for each rule and each fixed momentum.

    What is far below the best accuracy is named at the edge, or it would push the rest together.
    """
    entries = summary(comparison)
    momenta = {entry.method: comparison.settings(entry.method).get("momentum") for entry in entries}
    figure, axes = canvas(1, 2, (9.0, 1.7 + 0.34 * len(entries)), sharey=True)
    for axis, metric, name in zip(
        axes, ("train_loss", "test_accuracy"), ("Train loss", "Test accuracy (%)"), strict=True
    ):
        title(axis, name)
        low = _lowest(entries) if metric == "test_accuracy" else None
        for place, entry in enumerate(entries):
            rule = isinstance(momenta[entry.method], str)
            _draw(axis, place, entry, metric, STYLES["cgq" if rule else "sgd"].colour, low)
        if not any(metric in entry.values for entry in entries):
            no_values(axis, axis.xaxis)
    if positive(means(entries, "train_loss")):
        axes[0].set_xscale("log")
        plain_decades(axes[0].xaxis)
    names = [plain(name_of(momenta[entry.method], entry.label) + _lost(entry)) for entry in entries]
    axes[0].set_yticks(range(len(entries)), names)
    axes[0].set_ylim(len(entries) - 0.5, -0.5)
    hollow = any(entry.diverged and entry.values for entry in entries)
    notes = [*spread_notes(comparison, "whiskers"), *["hollow: some seeds diverged"] * hollow]
    heading(figure, f"Momentum: {comparison.title}", "; ".join(notes))
    return saved(figure, path)


def name_of(momentum: str | float | None, label: str) -> str:
    """How a momentum is written beside its point; a method that has none goes by its label.

    >>> name_of("dai_yuan", "momentum=dai_yuan"), name_of(0.5, "momentum=0.5")
    ('Dai–Yuan', 'fixed 0.5')
    """
    if momentum is None:
        return brief(label, 30)
    return RULES.get(momentum, momentum) if isinstance(momentum, str) else f"fixed {momentum:g}"


def _lowest(entries: list[Entry]) -> float | None:
    """The accuracy below which an entry is an outlier: many times as far off as the median is."""
    found = means(entries, "test_accuracy")
    if not found:
        return None
    best = max(found)
    return best - max(0.5, 6 * (best - statistics.median(found)))


def _draw(
    axis: Axes, place: int, entry: Entry, metric: str, colour: str, low: float | None
) -> None:
    value = entry.values.get(metric)
    if value is None:
        return
    if low is not None and value.mean < low:
        axis.annotate(
            f"◂ {shown_with_spread(metric, value)}",
            (0.01, place),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=9,
            color=colour,
        )
        return
    axis.errorbar(
        value.mean,
        place,
        xerr=value.spread,
        fmt="o",
        color=colour,
        mfc="white" if entry.diverged else colour,
        ms=6,
        capsize=3,
    )


def _lost(entry: Entry) -> str:
    return f"\n{entry.diverged} of {entry.seeds} diverged" if entry.diverged else ""
