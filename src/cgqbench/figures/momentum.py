"""The ablation over momentum rules and fixed momenta (the paper's figure 3a)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from cgqbench.figures.canvas import (
    canvas,
    heading,
    one_problem,
    plain,
    plain_decades,
    saved,
    title,
)
from cgqbench.palette import STYLES
from cgqbench.record import Line, Run
from cgqbench.summary import Entry, problem_of, summary

RULES = {
    "polak_ribiere": "Polak–Ribière",
    "fletcher_reeves": "Fletcher–Reeves",
    "hestenes_stiefel": "Hestenes–Stiefel",
    "dai_yuan": "Dai–Yuan",
}


def ablation_momentum(runs: Sequence[Run], path: Path) -> Path:
    """Train loss and test accuracy for each rule, then for each fixed momentum."""
    methods = one_problem(runs)
    momenta = {method: momentum_of(group[0].header) for method, group in methods.items()}
    entries = sorted(summary(runs), key=lambda entry: _place(momenta[entry.method]))
    figure, axes = canvas(1, 2, (9.0, 1.4 + 0.32 * len(entries)), sharey=True)
    for axis, metric, name in zip(
        axes, ("train_loss", "test_accuracy"), ("Train loss", "Test accuracy (%)"), strict=True
    ):
        title(axis, name)
        for place, entry in enumerate(entries):
            fixed = not isinstance(momenta[entry.method], str)
            _draw(axis, place, entry, metric, STYLES["sgd" if fixed else "cgq"].colour)
    axes[0].set_xscale("log")
    plain_decades(axes[0].xaxis)
    names = [plain(name_of(momenta[entry.method]) + _lost(entry)) for entry in entries]
    axes[0].set_yticks(range(len(entries)), names)
    axes[0].invert_yaxis()
    heading(figure, f"Momentum, {problem_of(runs[0].header).title}")
    return saved(figure, path)


def momentum_of(header: Line) -> str | float:
    """The rule's name, or the fixed value."""
    value = header.get("settings", {}).get("momentum", "polak_ribiere")
    return value if isinstance(value, str) else float(value)


def name_of(momentum: str | float) -> str:
    """How a momentum is written beside its point.

    >>> name_of("dai_yuan"), name_of(0.5)
    ('Dai–Yuan', 'fixed 0.5')
    """
    if isinstance(momentum, str):
        return RULES.get(momentum, momentum)
    return f"fixed {momentum:g}"


def _draw(axis: Axes, place: int, entry: Entry, metric: str, colour: str) -> None:
    value = entry.values.get(metric)
    if value is None:
        return
    axis.errorbar(
        value.mean,
        place,
        xerr=value.spread or 0.0,
        fmt="o",
        color=colour,
        mfc="white" if entry.diverged else colour,
        ms=6,
        capsize=3,
    )


def _lost(entry: Entry) -> str:
    return f"\n{entry.diverged} of {entry.seeds} diverged" if entry.diverged else ""


def _place(momentum: str | float) -> tuple[int, float, str]:
    if isinstance(momentum, str):
        known = list(RULES)
        return 0, float(known.index(momentum) if momentum in known else len(known)), momentum
    return 1, momentum, ""
