"""The train loss within an epoch: means over stretches of steps, few enough to keep."""

from __future__ import annotations

from cgqbench.records.reading import Run

STRETCHES = 20
"""At most so many of an epoch are kept, whatever its length."""
LOSSES = "train_losses"
"""What they are called in a record's row. Older records do not have them."""


def stretch(batches: int) -> int:
    """The steps of a stretch, in an epoch of so many; the last one may be shorter.

    >>> stretch(938), stretch(150), stretch(7)
    (47, 8, 1)
    """
    return max(1, -(-batches // STRETCHES))


def train_curve(run: Run) -> tuple[list[int], list[float | None]]:
    """The steps at which stretches ended, from the start of the run, and their mean train losses.

    Empty for a record that does not have them; None where a mean was not finite.
    """
    batches = run.header.get("batches") or 0
    size = stretch(batches)
    steps: list[int] = []
    losses: list[float | None] = []
    for row in run.epochs:
        found = row.get(LOSSES) or []
        before = batches * (row["epoch"] - 1)
        steps += [before + min(size * number, batches) for number in range(1, len(found) + 1)]
        losses += found
    return steps, losses
