"""What guessing comes to, and whether a run learned anything at all."""

from __future__ import annotations

import math

from cgqbench.records.reading import Run
from cgqbench.records.record import Line
from cgqbench.tasks.data import STDLIB
from cgqbench.tasks.data.image_sets import SOURCES
from cgqbench.tasks.data.text import VOCABULARY
from cgqbench.tasks.zoo import MEMBERS, ZOO

MARGIN = 0.01
"""What a living run must be below guessing by, as a share."""


def chance_loss(header: Line) -> float | None:
    """The loss H of guessing: classes, tokens by frequency, ln C if balanced; numbers by mean.

    None for a task of the user's own, whose classes nobody has counted.

    >>> round(chance_loss({"dataset": "stdlib"}), 2)
    4.57
    """
    if header.get("task") is not None:
        return None
    dataset = header["dataset"]
    if dataset == STDLIB:
        return math.log(VOCABULARY)
    if dataset == ZOO:
        return MEMBERS[header["network"]].guessing if header["network"] in MEMBERS else None
    return SOURCES[dataset].label_entropy if dataset in SOURCES else None


def dead(run: Run) -> bool:
    """Whether a run ended and came to nothing.

    It diverged, or the train loss L of its last epoch shows that it only guessed:

        L ≥ 0.99 H
    """
    if run.end is None:
        return False
    chance = chance_loss(run.header)
    loss = run.epochs[-1].get("train_loss") if run.epochs else None
    guessed = chance is not None and loss is not None and loss >= (1 - MARGIN) * chance
    return run.diverged or guessed
