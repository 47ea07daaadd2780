"""From a text to a method: `name` or `name:setting=value,...`, as in `scgq:search_prob=0.3`."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, get_args, get_type_hints

from cgqbench.methods.method import Method
from cgqbench.methods.registry import METHODS


def chosen(method: str, network: str) -> Method:
    """The method that a text such as `sgd:lr=0.05` names, with its settings for a network.

    >>> chosen("sgd:lr=0.05", "mlp").settings
    {'lr': 0.05, 'momentum': 0.9}
    >>> chosen("scgq", "densenet100").settings["lr"]
    0.1
    """
    name, _, assignments = method.partition(":")
    if name not in METHODS:
        raise ValueError(f"There is no method {name!r}. Choose from: {', '.join(METHODS)}.")
    found = METHODS[name]
    given = dict(_assignment(text, method) for text in assignments.split(",") if text)
    known = {
        key: hint
        for key, hint in get_type_hints(found.make).items()
        if key not in ("model", "budget", "seed", "return")
    }
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{name!r} has no setting {key!r}. It has: {', '.join(known)}.")
        if not _is_a(value, known[key]):
            wanted = getattr(known[key], "__name__", str(known[key]))
            raise ValueError(f"{key} in {method!r} is {value!r}. It must be: {wanted}.")
    if found.library and find_spec(found.library) is None:
        raise ValueError(
            f'{name!r} needs the library {found.library}. Install it: pip install "cgq[bench]".'
        )
    label = found.label + (f" {assignments.replace(',', ', ')}" if given else "")
    settings = {**found.settings_for(network), **given}
    return replace(found, label=label, settings=settings, families={})


def _assignment(text: str, method: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not (key and sign and value):
        raise ValueError(f"Cannot read {text!r} in {method!r}. Write name:setting=value,....")
    value = {"true": "True", "false": "False", "none": "None"}.get(value.strip().lower(), value)
    try:
        return key.strip(), ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key.strip(), value.strip()


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, or of one of several; a whole number is a number too."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    kinds = get_args(hint) or (hint,)
    return type(value) in kinds or (type(value) is int and float in kinds)
