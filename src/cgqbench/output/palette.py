"""One colour and dash for each method, the same in every figure and in the report.

Two methods with the same dash differ in colour for colour-blind readers too, and every colour
stands out from white and from near-black. Solid are the basic methods, dashed their variants,
dotted the paper's other rivals, mixed those that came after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Style(NamedTuple):
    """How a method's line is drawn; the dash is a list of lengths, empty for a solid line."""

    colour: str
    dash: tuple[float, ...] = ()


_DASHED = (5.0, 2.5)
_DOTTED = (1.5, 2.0)
_MIXED = (6.0, 2.0, 1.5, 2.0)

STYLES = {
    "sgd": Style("#666e79"),
    "adam": Style("#0e9e7c"),
    "lookahead": Style("#a27512", _DOTTED),
    "cocob": Style("#a5479d", _DOTTED),
    "armijo": Style("#c8649b", _DOTTED),
    "pal": Style("#7c6ee0", _DOTTED),
    "cgq": Style("#0a76bd"),
    "cgq_ls": Style("#3192d4", _DASHED),
    "scgq": Style("#d05a08"),
    "scgq_ls": Style("#df7028", _DASHED),
    "sgd_cosine": Style("#666e79", _DASHED),
    "sgd_warm_cosine": Style("#955446", _DOTTED),
    "adamw": Style("#0c783c"),
    "adamw_cosine": Style("#0e9e7c", _DASHED),
    "adagrad": Style("#58a058", _MIXED),
    "muon": Style("#8840e8", _DASHED),
    "schedulefree_sgd": Style("#666e79", _MIXED),
    "schedulefree_adamw": Style("#0e9e7c", _MIXED),
    "prodigy": Style("#a27512", _MIXED),
    "dadaptation": Style("#a5479d", _MIXED),
    "dog": Style("#7c6ee0", _MIXED),
    "mechanic": Style("#798ad2", _MIXED),
    "gen": Style("#267272", _DOTTED),
    "scgq_relative": Style("#d93a4a"),
    "search": Style("#4848fc"),
}

_SPARE = tuple(
    Style(colour, dash)
    for dash in ((), _DASHED, _DOTTED, _MIXED)
    for colour in (
        *("#0a76bd", "#d05a08", "#0e9e7c", "#a5479d"),
        *("#a27512", "#7c6ee0", "#d93a4a", "#666e79"),
    )
)


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """A style for each method: its own, or for methods of the user's making one that is free.

    >>> styles(["sgd", "mine"])["sgd"] == STYLES["sgd"]
    True
    """
    wanted = list(dict.fromkeys(methods))
    chosen = {method: STYLES[method] for method in wanted if method in STYLES}
    others = [method for method in wanted if method not in STYLES]
    free = [style for style in _SPARE if style not in chosen.values()]
    chosen.update({method: free[place % len(free)] for place, method in enumerate(others)})
    return {method: chosen[method] for method in wanted}
