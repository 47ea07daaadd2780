"""The paper's two tables as one picture: each cell in the colour of its verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from cgqbench.analysis.comparison import Comparison, several
from cgqbench.analysis.measures import ACCURACY, shown
from cgqbench.analysis.verdicts import TABLES, PaperCell, Verdict, paper_cells
from cgqbench.methods import METHODS
from cgqbench.output.figures.canvas import INK, QUIET, canvas, heading, legend, saved
from cgqbench.records.problem import TITLES

NONE, SOME_DIED = "–", "*"
"""What does not converge, in the paper and here, and what does with some seeds alone."""
EDGE = "#c4cad1"
"""The outline of a cell."""
GAP = 0.04
"""What is left around it."""


class Look(NamedTuple):
    """How a verdict is drawn. Blue and orange are told apart by everyone."""

    face: str
    hatch: str = ""


LOOKS = {
    Verdict.BETTER: Look("#8fc1e8"),
    Verdict.REPRODUCED: Look("#d5e6f5"),
    Verdict.WORSE: Look("#f3b482"),
    Verdict.NONE: Look("#eceff2"),
    Verdict.UNFINISHED: Look("white", "////"),
    Verdict.NOT_RUN: Look("white"),
}


def paper_map(compared: Sequence[Comparison], path: Path) -> Path:
    """Methods × columns of the paper's tables: our accuracy, the paper's, and which is better."""
    cells = [cell for table in TABLES for cell in paper_cells(compared, table)]
    columns = list(dict.fromkeys((cell.dataset, cell.network) for cell in cells))
    methods = list(dict.fromkeys(cell.method for cell in cells))
    figure, (axis,) = canvas(1, 1, (1.5 + 1.05 * len(columns), 1.6 + 0.45 * len(methods)))
    for cell in cells:
        at = columns.index((cell.dataset, cell.network)), methods.index(cell.method)
        _draw(axis, at, cell)
    axis.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(methods) - 0.5, -0.5))
    names = [_column(column, cells) for column in columns]
    axis.set_xticks(range(len(columns)), names)
    axis.set_yticks(range(len(methods)), [METHODS[method].label for method in methods])
    axis.xaxis.tick_top()
    axis.tick_params(length=0, labelcolor=INK)
    axis.grid(visible=False)
    for side in axis.spines.values():
        side.set_visible(False)
    counts = Counter(cell.verdict for cell in cells)
    squares = [
        Patch(label=f"{verdict.value}: {counts[verdict]}", **_square(verdict))
        for verdict in LOOKS
        if counts[verdict]
    ]
    legend(figure, squares)
    notes = ["Mean over seeds", f"{NONE}: does not converge"]
    if any(text.get_text().endswith(SOME_DIED) for text in axis.texts):
        notes.append(f"{SOME_DIED}: some seeds do not, left out if they diverged")
    if any(re.search(r"\d of \d", text.get_text()) for text in axis.texts):
        notes.append("n of N: the epochs of ours and of the paper's")
    heading(
        figure,
        "The paper's tables: test accuracy by the last weights, here and, small, in the paper",
        "; ".join(notes),
    )
    return saved(figure, path)


def _column(column: tuple[str, str], cells: Sequence[PaperCell]) -> str:
    """What it is of, and how many seeds ours are, where there are any."""
    mine = [cell for cell in cells if cell.entry and (cell.dataset, cell.network) == column]
    seeds = {cell.entry.seeds for cell in mine if cell.entry}
    lines = [TITLES[name] for name in column]
    if seeds:
        fewest = f"{min(seeds)} to " * (len(seeds) > 1)
        fewer_bits = ", bf16" * any(cell.fewer_bits for cell in mine)
        lines.append(fewest + several(max(seeds), "seed") + fewer_bits)
    return "\n".join(lines)


def _draw(axis: Axes, at: tuple[int, int], cell: PaperCell) -> None:
    """A cell: the colour of its verdict, ours, and below it the paper's."""
    corner = at[0] - 0.5 + GAP, at[1] - 0.5 + GAP
    axis.add_patch(Rectangle(corner, 1 - 2 * GAP, 1 - 2 * GAP, **_square(cell.verdict)))
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    ours, theirs = _ours(cell), _theirs(cell)
    if ours is not None:
        axis.text(at[0], at[1] - 0.14, ours, fontsize=9, color=INK, **middle)
    height = at[1] if ours is None else at[1] + 0.24
    axis.text(at[0], height, theirs, fontsize=6.5, color=QUIET, **middle)


def _ours(cell: PaperCell) -> str | None:
    """Our accuracy, marked where not all seeds have one; None before the first epoch."""
    if cell.entry is None:
        return None
    if cell.lost or ACCURACY not in cell.entry.values:
        return NONE
    return shown(ACCURACY, cell.entry.values[ACCURACY].mean) + SOME_DIED * (cell.entry.died > 0)


def _theirs(cell: PaperCell) -> str:
    """The paper's, and the epochs of ours where they are not as many."""
    text = NONE if cell.theirs is None else shown(ACCURACY, cell.theirs.test_accuracy)
    if cell.other_batches:
        text += f"; batches of {cell.other_batches}"
    elif cell.verdict in (Verdict.NONE, Verdict.UNFINISHED):
        text += f"; {cell.done} of {cell.epochs}"
    elif cell.entry and not cell.lost and cell.entry.epoch < cell.epochs:  # another seed has died
        text += f"; {cell.entry.epoch} of {cell.epochs}"
    return text


def _square(verdict: Verdict) -> dict[str, Any]:
    look = LOOKS[verdict]
    return {"facecolor": look.face, "hatch": look.hatch, "edgecolor": EDGE, "linewidth": 0.7}
