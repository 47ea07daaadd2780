"""The last test loss over the base's learning rate: of the base alone, and inside LineSearch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from cgqbench.analysis.chance import chance_loss
from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.measures import shown_loss
from cgqbench.analysis.summary import Entry, means, summary
from cgqbench.methods import METHODS
from cgqbench.output.figures.canvas import (
    QUIET,
    canvas,
    edge_marks,
    heading,
    legend,
    note,
    saved,
    spread_notes,
    title,
)
from cgqbench.output.palette import STYLES

SEARCH = "search"
FINAL, AVERAGED = "test_loss", "average_test_loss"
ROOM = 1.15
"""How far the axis reaches, in losses of guessing; what is higher is marked at the edge."""
MARGIN = 0.05
"""What is left free below the lowest point, in parts of the axis."""

Stroke = dict[str, Any]
Rates = dict[float, Entry]

_ALONE: Stroke = {"color": STYLES["sgd"].colour, "linewidth": 1.7, "marker": "s", "markersize": 4.5}
_AVERAGED: Stroke = {"color": STYLES["sgd"].colour, "linewidth": 1.0, "linestyle": (0, (4.0, 2.0))}
_SEARCHED: Stroke = {
    "color": STYLES[SEARCH].colour,
    "linewidth": 2.0,
    "marker": "o",
    "markersize": 5,
}
_GUESSING: Stroke = {"color": QUIET, "linewidth": 0.9, "linestyle": (0, (1.0, 2.0))}


@dataclass
class Base:
    """An optimizer at several rates, by the rate: alone, and as the base of LineSearch."""

    alone: Rates = field(default_factory=dict)
    searched: Rates = field(default_factory=dict)

    @property
    def entries(self) -> list[Entry]:
        """All of them."""
        return [*self.alone.values(), *self.searched.values()]


def any_rate(comparison: Comparison, path: Path) -> Path:
    """A panel for each base: the last test loss over `lr`, with its spread over seeds.

    LineSearch is shown by its averaged weights, where there are any, and by the seeds that it has
    at every rate. The axis ends a little above the loss of guessing: what is higher is a triangle
    at the edge, and what diverged a cross.
    """
    bases, alike = _bases(comparison), _bases(with_shared_seeds(comparison))
    columns = min(2, len(bases))
    rows = -(-len(bases) // columns)
    figure, axes = canvas(rows, columns, (9.0, 1.7 + 2.6 * rows), sharex=True, sharey=True)
    chance = chance_loss(comparison.runs[0].header)
    ours = AVERAGED if _has(AVERAGED, (base.searched for base in bases.values())) else FINAL
    rates = [lr for base in bases.values() for lr in (*base.alone, *base.searched)]
    axes[0].set(xscale="log", xlim=(min(rates) / 2, max(rates) * 2))
    for axis, (name, base) in zip(axes, bases.items(), strict=False):
        title(axis, METHODS[name].label if name in METHODS else name)
        words = steadiness(alike[name].searched, ours)
        lost = any(entry.diverged for entry in base.searched.values())
        note(axis, f"{words}, × left out" if words and lost else words)
        if chance is not None:
            axis.axhline(chance, **_GUESSING)
        _line(axis, base.alone, AVERAGED, _AVERAGED)
        _line(axis, base.alone, FINAL, _ALONE)
        _line(axis, alike[name].searched, ours, _SEARCHED)  # or a seed would look like a rate
        if not _has(FINAL, (base.alone, base.searched)):
            # The ticks stay: other panels share them.
            axis.text(0.5, 0.5, "no values", transform=axis.transAxes, ha="center", color=QUIET)
    if chance is not None:
        # The lower end too: left to itself it makes room in proportion to what is out of sight.
        top = ROOM * chance
        lowest = min(_feet(bases.values(), top), default=chance)
        axes[0].set_ylim(lowest - MARGIN * (top - lowest), top)
    high = []
    for axis, base in zip(axes, bases.values(), strict=False):
        high += _edge(axis, base.alone, FINAL, STYLES["sgd"].colour, 0.97)
        high += _edge(axis, base.searched, ours, STYLES[SEARCH].colour, 0.91)
    _label(axes, len(bases), columns)
    legend(figure, _handles(bases, ours, chance))
    notes = [*spread_notes(comparison, "whiskers"), *["▲: above the axis"] * bool(high)]
    lines = [f"Test loss at any base rate: {comparison.title}", "; ".join(notes)]
    gone = [one for base in bases.values() for one in base.entries if one.diverged]
    if gone:
        named = [f"{one.label} ({one.diverged} of {one.seeds})" for one in gone]
        lines.append(f"×: seeds diverged: {', '.join(named)}")
    heading(figure, *lines)
    return saved(figure, path)


def with_shared_seeds(comparison: Comparison) -> Comparison:
    """Of LineSearch those runs whose seeds were run at every rate: others differ by their seeds.

    All of them where no seed was.
    """
    seeds = [
        {run.header["seed"] for run in runs}
        for method, runs in comparison.methods.items()
        if method.partition(":")[0] == SEARCH
    ]
    shared = set.intersection(*seeds) if seeds else set()
    if not shared:
        return comparison
    methods = {
        method: [run for run in runs if run.header["seed"] in shared] or runs
        for method, runs in comparison.methods.items()
    }
    return replace(comparison, methods=methods)


def steadiness(searched: Rates, metric: str) -> str:
    """How little the rate matters: the largest deviation from the median over the rates.

    max |L - median| / median, of the means L over seeds.
    """
    found = means(searched.values(), metric)
    if len(found) < 2:
        return ""
    median = statistics.median(found)
    off = max(abs(mean - median) for mean in found) / median
    # Rounded up: "at most 0.00 %" would be more than is known.
    hundredths = max(1, math.ceil(1e4 * off))
    return f"LineSearch: at most {hundredths / 100:.2f} % from its median, {shown_loss(median)}"


def _bases(comparison: Comparison) -> dict[str, Base]:
    """In the order of the methods, each by rising rate; a method without a rate has no place."""
    found: dict[str, Base] = {}
    for entry in summary(comparison):
        settings = comparison.settings(entry.method)
        if settings.get("lr") is None:
            continue
        name = entry.method.partition(":")[0]
        base = found.setdefault(settings.get("base", name), Base())
        rates = base.searched if name == SEARCH else base.alone
        rates[float(settings["lr"])] = entry
    return {
        name: Base(dict(sorted(base.alone.items())), dict(sorted(base.searched.items())))
        for name, base in found.items()
    }


def _has(metric: str, sweeps: Iterable[Rates]) -> bool:
    return any(metric in entry.values for rates in sweeps for entry in rates.values())


def _feet(bases: Iterable[Base], top: float) -> list[float]:
    """Where the points below `top` begin, whiskers included."""
    known = [entry.values for base in bases for entry in base.entries]
    values = [one[metric] for one in known for metric in (FINAL, AVERAGED) if metric in one]
    return [value.mean - (value.spread or 0.0) for value in values if value.mean <= top]


def _line(axis: Axes, rates: Rates, metric: str, stroke: Stroke) -> None:
    values = {lr: entry.values[metric] for lr, entry in rates.items() if metric in entry.values}
    if values:
        axis.errorbar(
            list(values),
            [value.mean for value in values.values()],
            # The thin line is company for its own kind: whiskers of both would cover each other.
            yerr=None
            if stroke is _AVERAGED
            else [value.spread or 0.0 for value in values.values()],
            **stroke,
            elinewidth=1.0,
            capsize=2.5,
        )


def _edge(axis: Axes, rates: Rates, metric: str, colour: str, height: float) -> list[float]:
    """Mark at the upper edge what is above it, or has no height at all; the rates of the former."""
    top = axis.get_ylim()[1]
    high = [lr for lr, one in rates.items() if any(mean > top for mean in means([one], metric))]
    lost = [lr for lr, one in rates.items() if one.diverged]
    for places, mark in ((high, "^"), (lost, "x")):
        edge_marks(axis, places, height, mark, colour)
    return high


def _label(axes: list[Axes], panels: int, columns: int) -> None:
    for axis in axes[panels:]:
        axis.remove()
    for axis in axes[:panels]:
        axis.xaxis.set_minor_locator(NullLocator())
    for axis in axes[max(0, panels - columns) : panels]:
        axis.set_xlabel("learning rate of the base")
        axis.tick_params(labelbottom=True)
    for axis in axes[:panels:columns]:
        axis.set_ylabel("test loss")


def _handles(bases: dict[str, Base], ours: str, chance: float | None) -> list[Line2D]:
    weights = "averaged" if ours == AVERAGED else "final weights"
    handles = [
        Line2D([], [], **_SEARCHED, label=f"LineSearch, {weights}"),
        Line2D([], [], **_ALONE, label="alone, final weights"),
    ]
    if _has(AVERAGED, (base.alone for base in bases.values())):
        handles.append(Line2D([], [], **_AVERAGED, label="alone, averaged"))
    if chance is not None:
        handles.append(Line2D([], [], **_GUESSING, label=f"guessing, {chance:.2f}"))
    return handles
