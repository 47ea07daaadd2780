"""How a run is judged: by its test accuracy or, where its task has none, by its test loss.

Which way is better and how a value is written follow from the measure; nothing else decides it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from cgqbench.analysis.spread import Statistic

ACCURACY, LOSS = "test_accuracy", "test_loss"


def judged_by(rows: Iterable[Mapping[str, Any]]) -> str:
    """The measure of those that have recorded these rows, epochs or means of them.

    >>> judged_by([{"test_loss": 0.1, "test_accuracy": None}, {"test_accuracy": 98.0}])
    'test_accuracy'
    >>> judged_by([{"test_loss": 0.1}])
    'test_loss'
    """
    return ACCURACY if any(row.get(ACCURACY) is not None for row in rows) else LOSS


def averaged(measure: str) -> str:
    """The same measure of the averaged weights."""
    return f"average_{measure}"


def higher_is_better(measure: str) -> bool:
    """Whether more is better: of accuracies, not of losses."""
    return measure.endswith("accuracy")


def best(measure: str, values: Iterable[float]) -> float:
    """The best of some values."""
    return (max if higher_is_better(measure) else min)(values)


def difference(measure: str, ours: float, theirs: float) -> str:
    """How two results compare: losses in percent, accuracies, which are percents, in points.

    >>> difference("test_loss", 1.44, 1.5), difference("test_accuracy", 91.0, 91.3)
    ('4.0 % better', '0.30 points worse')
    """
    points = higher_is_better(measure)
    gain = ours - theirs if points else theirs - ours
    if points:
        size = f"{abs(gain):.2f} points"
    elif theirs:
        size = f"{abs(100 * gain / theirs):.1f} %"
    else:
        size = f"{abs(gain):.3g}"  # of nothing there is no share
    if not float(size.split()[0]):
        return "level"
    return f"{size} {'better' if gain > 0 else 'worse'}"


def name(measure: str) -> str:
    """What a measure is called, with its unit.

    >>> name("test_accuracy"), name("test_loss")
    ('test accuracy (%)', 'test loss')
    """
    return measure.replace("_", " ") + " (%)" * higher_is_better(measure)


def told(measure: str, value: float) -> str:
    """A measure in a line of text.

    >>> told("test_accuracy", 97.5), told("test_loss", 0.25)
    ('test accuracy 97.50 %', 'test loss 0.2500')
    """
    words = measure.replace("_", " ")
    return f"{words} {value:.2f} %" if higher_is_better(measure) else f"{words} {value:.4f}"


def shown_loss(value: float) -> str:
    """A loss to three significant digits; from 1 on to four, for there it falls by small shares.

    >>> shown_loss(0.0024049), shown_loss(1.45)
    ('0.00240', '1.450')
    """
    size = abs(value)
    if size != 0 and not 1e-5 <= size < 1e6:
        return f"{value:.2e}"
    decimals = 2 if size == 0 else max(0, 2 + (size >= 1) - math.floor(math.log10(size)))
    return f"{value:.{decimals}f}"


def shown(measure: str, value: float) -> str:
    """A value as tables show it: losses to three or four digits, accuracies to two decimals."""
    return f"{value:.2f}" if higher_is_better(measure) else shown_loss(value)


def shown_with_spread(measure: str, value: Statistic) -> str:
    """Mean ± spread, both to the decimals of the mean.

    >>> shown_with_spread("train_loss", Statistic(0.0204, 0.0031, 3))
    '0.0204 ± 0.0031'
    >>> shown_with_spread("train_loss", Statistic(0.0204, 0.00001, 3))
    '0.0204 ± <0.0001'
    """
    mean = shown(measure, value.mean)
    if value.spread is None:
        return mean
    if "e" in mean:
        return f"{mean} ± {value.spread:.2e}"
    decimals = len(mean.partition(".")[2])
    least = 10.0**-decimals
    if 0 < value.spread < least / 2:
        return f"{mean} ± <{least:.{decimals}f}"
    return f"{mean} ± {value.spread:.{decimals}f}"
