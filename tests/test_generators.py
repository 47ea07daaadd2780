"""Costly random generators are looked at where somebody draws from them, and now and then."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cgq import CGQ
from cgq.evaluation.environment import LOOKS


def test_who_does_not_draw_is_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = CGQ([weight], lr=1e-3)
    calls, read = [], random.getstate
    monkeypatch.setattr(random, "getstate", lambda: calls.append(1) or read())
    looked_at = []
    for step in range(4 * LOOKS):
        calls.clear()
        optimizer.step(lambda: weight.square().sum())
        looked_at += [step] if calls else []
    assert looked_at == [*range(LOOKS), LOOKS, 2 * LOOKS, 3 * LOOKS]


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["python", "numpy"])
@pytest.mark.parametrize("first", [0, LOOKS + 3])
@pytest.mark.parametrize("search_prob", [1.0, 0.1])
def test_who_draws_is_honest_once_it_was_seen(draw: Any, first: int, search_prob: float) -> None:
    """All points of a search have the draw of its first pass, and one step is one draw."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = CGQ([weight], lr=1e-30, search_prob=search_prob)  # a step that moves nothing
    random.seed(0)
    np.random.seed(0)
    pass_number, searches = 0, 0

    def closure() -> Tensor:
        return weight.square().sum() + (draw() if pass_number >= first else 0.5)

    seen_from = first if first < LOOKS else 2 * LOOKS + 1
    losses = []
    for pass_number in range(3 * LOOKS):  # the closure reads it
        if pass_number == seen_from:
            random.seed(1)
            np.random.seed(1)
        losses.append(optimizer.step(closure).item())
        search = optimizer.last_search
        if search is not None and pass_number >= seen_from:
            searches += 1
            assert set(search.trial_losses) == {search.loss}
    assert searches > 0
    random.seed(1)
    np.random.seed(1)
    assert losses[seen_from:] == pytest.approx([3.0 + draw() for _ in losses[seen_from:]])


def test_generators_go_back_even_where_gradients_cannot() -> None:
    """A closure that fails after it has changed the dtype of the weights."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = CGQ(model.parameters())
    for param in model.parameters():
        param.grad = torch.ones_like(param)

    def closure() -> torch.Tensor:
        model(torch.rand(8, 4))
        model.double()
        raise ValueError("mine")

    before = torch.get_rng_state()
    with pytest.raises((ValueError, RuntimeError)):
        optimizer.step(closure)
    assert torch.equal(before, torch.get_rng_state())
    assert not model[1].num_batches_tracked
