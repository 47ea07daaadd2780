"""What the zoo's figures share: which methods they show, in which order and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cgqbench.analysis.standings import CONSTANT, OURS, SCHEDULED, Standing, family
from cgqbench.output.figures.canvas import brief, plain
from cgqbench.output.palette import styles

Stroke = dict[str, Any]

_TUNED = {CONSTANT: "AdamW, best constant rate", SCHEDULED: "AdamW + cosine, best rate"}


def strokes(found: Sequence[Standing]) -> dict[str, Stroke]:
    """How each method's line is drawn and named, those of the tuned first.

    LineSearch comes last, so that it lies on top, and is thicker.
    """
    labels = {
        name: _TUNED.get(name, result.entry.label)
        for one in found
        for name, result in one.results.items()
    }
    order = sorted(labels, key=lambda name: (family(name) == OURS, name not in _TUNED))
    style = styles(order)
    return {
        name: {
            "color": style[name].colour,
            "linestyle": (0, style[name].dash) if style[name].dash else "solid",
            "linewidth": 2.2 if family(name) == OURS else 1.4,
            "label": plain(brief(labels[name])),
        }
        for name in order
    }
