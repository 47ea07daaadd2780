"""What the report's own script draws: curves and landscapes as plain numbers, kept short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.costs import machines_of
from cgqbench.analysis.curves import curve, seconds
from cgqbench.analysis.roughness import vertices
from cgqbench.output.palette import Style
from cgqbench.records.reading import Run
from cgqbench.records.record import Line
from cgqbench.records.searches import Searches

Chart = dict[str, Any]

METRICS = (
    ("train_loss", "Train loss"),
    ("test_accuracy", "Test accuracy (%)"),
    ("average_test_accuracy", "Test accuracy of the average (%)"),
    ("test_loss", "Test loss"),
    ("average_test_loss", "Test loss of the average"),
    ("step_size", "Step size"),
    ("momentum", "Momentum"),
    ("capped", "Share of searches at the ceiling"),
)
MOST_SEARCHES = 120
"""Of one file; more are thinned out evenly, to keep the page small."""


def chart(comparison: Comparison, style: dict[str, Style]) -> Chart:
    """A line for each method, and the metrics that any of them has."""
    series: list[Chart] = []
    for method, group in comparison.methods.items():
        curves = {key: curve(group, key) for key, _ in METRICS}
        series.append(
            {
                "label": comparison.labels[method],
                "colour": style[method].colour,
                "dash": list(style[method].dash),
                "seconds": _short(seconds(group)),
                "state": _state(group),
                "curves": {
                    key: {"mean": _short(line.mean), "spread": _short(line.spread)}
                    for key, line in curves.items()
                    if not line.empty
                },
            }
        )
    metrics = [
        {"key": key, "label": label}
        for key, label in METRICS
        if any(key in line["curves"] for line in series)
    ]
    return {"metrics": metrics, "series": series, "machines": len(machines_of(comparison.runs))}


def landscapes(found: Sequence[Searches]) -> list[Chart]:
    """The searches of each landscape file."""
    return [
        {"title": one.title, "searches": [_search(line) for line in _thinned(one.lines)]}
        for one in found
    ]


def _state(runs: Sequence[Run]) -> str:
    """Why a method's line goes no further."""
    if all(run.diverged for run in runs):
        return "diverged"
    return "ended" if any(run.end is not None and not run.diverged for run in runs) else "running"


def _search(line: Line) -> Chart:
    numbers = {
        key: _rounded(line[key]) for key in ("loss", "slope", "step_size", "ceiling", "step")
    }
    rows = {key: _short(line[key]) for key in ("grid", "losses", "trial_steps", "trial_losses")}
    fits = {key: line[key] and _short(line[key]) for key in ("two_point", "least_squares")}
    kept = {key: line[key] for key in ("epoch", "accepted", "capped")}
    return {**numbers, **rows, **fits, **kept, "vertices": _short(vertices(line))}


def _thinned(lines: list[Line]) -> list[Line]:
    if len(lines) <= MOST_SEARCHES:
        return lines
    last = len(lines) - 1
    return [lines[round(place * last / (MOST_SEARCHES - 1))] for place in range(MOST_SEARCHES)]


def _short(values: Sequence[float | None]) -> list[float | None]:
    return [_rounded(value) for value in values]


def _rounded(value: float | None) -> float | None:
    """Five digits: more than a screen shows.

    >>> _rounded(0.123456789), _rounded(98.4), _rounded(664)
    (0.12346, 98.4, 664)
    """
    return value if value is None or isinstance(value, int) else float(f"{value:.5g}")
