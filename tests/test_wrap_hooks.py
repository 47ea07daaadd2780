"""Hooks of state_dict, load_state_dict and step work on LineSearch as on any optimizer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from test_transactions import assert_same
from torch import nn

from cgq import LineSearch

BASES: dict[str, Any] = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
}
pytestmark = pytest.mark.parametrize("base", BASES.values(), ids=BASES)


def trained(base: Any, steps: int = 3) -> LineSearch:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4))
    optimizer = LineSearch(base([weight]))
    for _ in range(steps):
        optimizer.step(lambda: (weight - 1.0).square().sum())
    return optimizer


def test_before_the_state_is_taken(base: Any) -> None:
    """A pre-hook sees the optimizer and can still change what is saved."""
    optimizer, order = trained(base), []

    def first(seen: Any) -> None:
        assert seen is optimizer
        order.append("first")
        seen.param_groups[0]["note"] = "changed"

    def second(seen: Any) -> None:
        assert seen.param_groups[0]["note"] == "changed"
        order.append("second")

    optimizer.register_state_dict_pre_hook(second)
    optimizer.register_state_dict_pre_hook(first, prepend=True)
    assert optimizer.state_dict()["param_groups"][0]["note"] == "changed"
    assert order == ["first", "second"]


def test_after_the_state_is_taken(base: Any) -> None:
    """A post-hook may change the state dict, or give another; the next one gets that."""
    optimizer, order = trained(base), []
    plain = copy.deepcopy(optimizer.state_dict())

    def notes(seen: Any, state: dict[str, Any]) -> None:
        assert seen is optimizer
        assert_same(state, plain)
        order.append("notes")
        state["note"] = 1

    def replaces(seen: Any, state: dict[str, Any]) -> dict[str, Any]:
        order.append("replaces")
        return {**state, "note": state["note"] + 1, "more": True}

    optimizer.register_state_dict_post_hook(notes)
    handle = optimizer.register_state_dict_post_hook(replaces)
    assert_same(optimizer.state_dict(), {**plain, "note": 2, "more": True})
    assert order == ["notes", "replaces"]
    handle.remove()
    assert_same(optimizer.state_dict(), {**plain, "note": 1})
    assert order == ["notes", "replaces", "notes"]


def test_before_a_state_is_loaded(base: Any) -> None:
    source = trained(base)
    optimizer, order = trained(base, steps=1), []
    saved = source.state_dict()
    given = copy.deepcopy(saved)

    def replaces(seen: Any, state: dict[str, Any]) -> dict[str, Any]:
        assert seen is optimizer
        order.append("replaces")
        groups = [{**group, "lr": 0.25} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    def looks(seen: Any, state: dict[str, Any]) -> None:
        assert state["param_groups"][0]["lr"] == 0.25
        assert seen.param_groups[0]["steps"] == 1, "not loaded yet"
        order.append("looks")

    optimizer.register_load_state_dict_pre_hook(replaces)
    optimizer.register_load_state_dict_pre_hook(looks)
    optimizer.load_state_dict(saved)
    assert order == ["replaces", "looks"]
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.param_groups[0]["steps"] == 3
    assert_same(saved, given)  # the caller's is not written to


def test_after_a_state_is_loaded(base: Any) -> None:
    source = trained(base)
    optimizer, order = trained(base, steps=1), []

    def first(seen: Any) -> None:
        assert seen is optimizer
        assert seen.param_groups[0]["steps"] == 3, "loaded"
        order.append("first")
        seen.param_groups[0]["steps"] = 7

    def second(seen: Any) -> None:
        assert seen.param_groups[0]["steps"] == 7
        order.append("second")

    optimizer.register_load_state_dict_post_hook(second)
    optimizer.register_load_state_dict_post_hook(first, prepend=True)
    optimizer.load_state_dict(source.state_dict())
    assert order == ["first", "second"]
    assert optimizer.param_groups[0]["steps"] == 7


def test_the_base_s_own_are_called_too(base: Any) -> None:
    """Once each: the state is the base's."""
    optimizer, seen = trained(base), []
    optimizer.base.register_state_dict_post_hook(lambda *args: seen.append("base"))
    optimizer.register_state_dict_post_hook(lambda *args: seen.append("search"))
    optimizer.state_dict()
    assert seen == ["base", "search"]


def test_around_a_step(base: Any) -> None:
    optimizer, seen = trained(base), []
    optimizer.register_step_pre_hook(lambda *args: seen.append("before"))
    optimizer.register_step_post_hook(lambda *args: seen.append("after"))
    (weight,) = optimizer.param_groups[0]["params"]
    for _ in range(2):
        optimizer.step(lambda: weight.square().sum())
    assert seen == ["before", "after"] * 2
