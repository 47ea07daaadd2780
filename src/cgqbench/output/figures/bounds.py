"""The ablation over the ceilings of step and momentum (the paper's figure 3c)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LogNorm
from matplotlib.patches import Rectangle

from cgqbench.analysis.comparison import Comparison
from cgqbench.analysis.measures import shown_loss
from cgqbench.analysis.summary import Entry, summary
from cgqbench.output.figures.canvas import QUIET, canvas, heading, plain_decades, saved

BOUNDS = {"lr", "max_momentum"}
"""The settings that place a method on the map."""


def ablation_bounds(comparison: Comparison, path: Path) -> Path:
    """A map of the train loss over α_max × β_max; hatched where a seed or all of them diverged.

    A method that does not have both bounds has no place on it.
    """
    settings = [(entry, comparison.settings(entry.method)) for entry in summary(comparison)]
    entries = {
        (float(chosen["lr"]), float(chosen["max_momentum"])): entry
        for entry, chosen in settings
        if chosen.keys() >= BOUNDS
    }
    if not entries:
        raise ValueError(
            "The map of ceilings needs the settings lr and max_momentum, and no method has both. "
            "Run cgq:lr=...,max_momentum=..."
        )
    steps = sorted({step for step, _ in entries})
    momenta = sorted({momentum for _, momentum in entries})
    losses = np.full((len(momenta), len(steps)), np.nan)
    for (step, momentum), entry in entries.items():
        if "train_loss" in entry.values:
            losses[momenta.index(momentum), steps.index(step)] = entry.values["train_loss"].mean

    figure, (axis,) = canvas(1, 1, (9.0, 1.8 + 0.5 * max(3, len(momenta))))
    axis.grid(visible=False)
    norm = _norm(losses)
    colours = colormaps["cividis_r"]
    image = axis.imshow(losses, norm=norm, cmap=colours, aspect="auto", origin="lower")
    for (step, momentum), entry in entries.items():
        at = steps.index(step), momenta.index(momentum)
        _write(axis, at, entry, norm, colours)
    axis.set_xticks(range(len(steps)), [f"{step:g}" for step in steps])
    axis.set_yticks(range(len(momenta)), [f"{momentum:g}" for momentum in momenta])
    axis.set_xlabel(r"ceiling of the step size, $\alpha_{max}$")
    axis.set_ylabel(r"ceiling of the momentum, $\beta_{max}$")
    bar = figure.colorbar(image, ax=axis, pad=0.015)
    bar.outline.set_visible(False)
    bar.ax.tick_params(which="both", labelsize=8, colors=QUIET)
    plain_decades(bar.ax.yaxis)
    notes = [comparison.budget]
    if any(entry.seeds > 1 for entry in entries.values()):
        notes.append("mean over seeds")
    if any(entry.diverged for entry in entries.values()):
        notes.append("hatched: seeds diverged")
    heading(figure, f"Train loss by ceilings: {comparison.title}", "; ".join(notes))
    return saved(figure, path)


def _norm(losses: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> LogNorm:
    known = losses[np.isfinite(losses) & (losses > 0)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.1, 1.0)
    return LogNorm(low, high if high > low else 2 * low, clip=True)


def _write(axis: Axes, at: tuple[int, int], entry: Entry, norm: LogNorm, colours: Colormap) -> None:
    value = entry.values.get("train_loss")
    ink = QUIET
    if value is not None:
        red, green, blue, _ = colours(float(norm(value.mean)))
        ink = "#1c2128" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
    if entry.diverged:
        corner = (at[0] - 0.5, at[1] - 0.5)
        axis.add_patch(
            Rectangle(corner, 1, 1, fill=False, hatch="////", edgecolor="#9aa2ab", linewidth=0)
        )
    text = "–" if value is None else shown_loss(value.mean)
    if entry.diverged:
        text += f"\n{entry.diverged}/{entry.seeds} diverged"
    axis.text(
        *at,
        text,
        ha="center",
        va="center",
        fontsize=8,
        color=ink,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2} if value is None else None,
    )
