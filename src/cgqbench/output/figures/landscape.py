"""The loss along the line of a search, with both parabolas (the paper's figure 1)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from cgqbench.analysis.roughness import roughness, vertices
from cgqbench.output.figures.canvas import INK, QUIET, canvas, heading, numbers, saved, title
from cgqbench.output.palette import STYLES
from cgqbench.records.record import Line
from cgqbench.records.searches import Searches

PARABOLAS = (
    ("two_point", "two-point parabola", STYLES["scgq"].colour, (5.0, 2.5)),
    ("least_squares", "least-squares parabola", STYLES["adam"].colour, (1.5, 1.5)),
)


def landscape(found: Searches, path: Path) -> Path:
    """The smoothest and the roughest of the lines in a landscape file, side by side."""
    # A line that is hardly finite anywhere cannot be judged; it is shown if there is no other.
    judged = [line for line in found.lines if math.isfinite(roughness(line))] or found.lines
    lines = sorted(judged, key=roughness)
    picked = {f"Smoothest of {len(lines)}": lines[0], f"Roughest of {len(lines)}": lines[-1]}
    if len(lines) == 1:
        picked = {"The only search": lines[0]}
    figure, axes = canvas(1, len(picked), (9.0, 3.8))
    for axis, (name, line) in zip(axes, picked.items(), strict=True):
        title(axis, f"{name}: step {line['step']}, epoch {line['epoch']}")
        _draw(axis, line)
    axes[0].set_ylabel("loss of the mini-batch")
    known: dict[str, Artist] = {}
    for axis in axes:
        known.update(dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True)))
    figure.legend(
        known.values(),
        known.keys(),
        loc="outside lower center",
        ncols=len(known),
        frameon=False,
        fontsize=9,
    )
    heading(figure, found.title)
    return saved(figure, path)


def _draw(axis: Axes, line: Line) -> None:
    grid = np.array(line["grid"], dtype=float)
    losses = numbers(line["losses"])
    axis.plot(grid, losses, color=INK, linewidth=1.8, label="loss along the line")
    for key, name, colour, dash in PARABOLAS:
        if line[key] is not None:
            axis.plot(
                grid,
                np.polyval(line[key], grid),
                color=colour,
                linestyle=(0, dash),
                linewidth=1.8,
                label=name,
            )
    trials = numbers(line["trial_losses"])
    axis.plot(line["trial_steps"], trials, "o", color=INK, mfc="white", ms=6, label="trials")
    axis.axvline(
        line["step_size"],
        color=STYLES["cgq"].colour,
        linewidth=1.3,
        label="step size taken",
        zorder=0,
    )
    seen = np.concatenate([losses, trials, [line["loss"]], vertices(line)])
    seen = seen[np.isfinite(seen)]
    low, high = float(seen.min()), float(seen.max())
    margin = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    axis.set_ylim(low - margin, high + margin)
    axis.set_xlabel("step size α", color=QUIET)
