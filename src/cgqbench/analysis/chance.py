"""What guessing comes to, and whether a run learned anything at all."""

from __future__ import annotations

import math

from cgqbench.records.reading import Run
from cgqbench.records.record import Line
from cgqbench.tasks.data import STDLIB
from cgqbench.tasks.data.image_sets import SOURCES
from cgqbench.tasks.data.text import VOCABULARY
from cgqbench.tasks.zoo import MEMBERS, ZOO

LOSSES = "train_loss", "test_loss", "average_test_loss"
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

    It diverged, or all losses L of its last epoch show that it only guessed, those of the train set
    and of the test set, by its final and its averaged weights:

        L ≥ 0.99 H
    """
    if run.end is None:
        return False
    chance, last = chance_loss(run.header), run.epochs[-1] if run.epochs else {}
    known = [loss for name in LOSSES if (loss := last.get(name)) is not None]
    guessed = chance is not None and all(loss >= (1 - MARGIN) * chance for loss in known)
    return run.diverged or (bool(known) and guessed)
