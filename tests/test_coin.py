"""The coin in runs: it advances with every call of step, whatever becomes of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext as nothing
from typing import Any

import pytest
import torch
from test_accelerator import as_accelerator
from torch import Tensor, nn
from wrapped_run import is_well

from cgq import CGQ, LineSearch
from cgq.rules.when_to_search import coin

BATCHES = 200
HEADS = [batch for batch in range(BATCHES) if batch == 0 or coin(0, batch, 0.1)]
Make = Callable[[Any], CGQ | LineSearch]


def wrapped(params: Any) -> LineSearch:
    return LineSearch(torch.optim.AdamW(params), search_prob=0.1)


KINDS: dict[str, Make] = {
    "CGQ": lambda params: CGQ(params, search_prob=0.1),
    "relative CGQ": lambda params: CGQ(params, max_relative_step=0.01, search_prob=0.1),
    "LineSearch": wrapped,
}
EVERY_KIND = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
EITHER_WAY = pytest.mark.parametrize("way", ["host", "accelerator"])


def searched_batches(make: Make, spoilt: Callable[[Tensor], Tensor]) -> list[int]:
    """Those of a run in which, after the first step, `spoilt` is what becomes of each loss."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    inputs, targets = torch.randn(16, 4).double(), torch.randn(16, 1).double()
    optimizer = make(model.parameters())
    batch, probed = 0, set()

    def closure() -> Tensor:
        loss = nn.functional.mse_loss(model(inputs), targets)
        if not torch.is_grad_enabled():
            probed.add(batch)
        return spoilt(loss) if batch else loss

    for batch in range(BATCHES):
        optimizer.step(closure)
        if not batch:
            is_well(optimizer)
    return sorted(probed)


def only_in_trials(loss: Tensor) -> Tensor:
    return loss if torch.is_grad_enabled() else loss * math.nan


def test_about_a_tenth_is_searched() -> None:
    assert 10 <= len(HEADS) <= 30


@EITHER_WAY
@EVERY_KIND
@pytest.mark.filterwarnings("ignore:Twenty steps in a row:UserWarning")
def test_trials_that_are_never_finite(
    make: Make, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "accelerator":
        as_accelerator(monkeypatch)
    assert searched_batches(make, only_in_trials) == HEADS


@EITHER_WAY
@EVERY_KIND
def test_a_quiet_run(make: Make, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For comparison: the same batches are searched as where all trials fail."""
    if way == "accelerator":
        as_accelerator(monkeypatch)
    assert searched_batches(make, lambda loss: loss) == HEADS


@EVERY_KIND
def test_losses_that_are_not_finite(make: Make) -> None:
    """Batches 20 to 150 are skipped as a whole; the coin goes on all the same."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5).double())
    optimizer = make([weight])
    seen = []
    for batch in range(BATCHES):
        spoilt = 20 <= batch <= 150
        with pytest.warns(match="Twenty steps in a row") if batch == 39 else nothing():
            optimizer.step(lambda: weight.square().sum() * (math.nan if spoilt else 1.0))
        if not batch:
            is_well(optimizer)
        if optimizer.last_search is not None:
            seen.append(batch)
    assert optimizer.param_groups[0]["skipped"] == 131
    assert seen == [batch for batch in HEADS if not 20 <= batch <= 150]
