"""A batch whose loss or gradient is not finite, in a searched step, on either way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import wrapped_run
from test_accelerator import as_accelerator
from test_transactions import Run as PlainRun
from test_transactions import assert_same
from torch import Tensor


def nan_loss(loss: Tensor) -> Tensor:
    return loss * math.nan


def infinite_loss(loss: Tensor) -> Tensor:
    return loss * math.inf


def nan_gradient(loss: Tensor) -> Tensor:
    """The loss itself is finite: √x at 0 has no derivative."""
    return loss + torch.sqrt(0.0 * loss)


def infinite_gradient(loss: Tensor) -> Tensor:
    """A finite loss whose graph multiplies what comes back."""
    steep = loss * 1.0
    if steep.requires_grad:
        steep.register_hook(lambda grad: grad * math.inf)
    return steep


KINDS: dict[str, Callable[[], Any]] = {
    "CGQ": PlainRun,
    "relative CGQ": lambda: PlainRun(max_relative_step=0.01),
    "CGQ with decay": lambda: PlainRun(weight_decay=0.01, momentum=0.9, nesterov=True),
    "LineSearch of AdamW": lambda: wrapped_run.Run(search_prob=1.0),
    "LineSearch of SGD": lambda: wrapped_run.Run(
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), search_prob=1.0
    ),
}


def snapshot(run: Any) -> Any:
    """All but the counts: this step is counted."""
    model, state, generators = run.snapshot()
    for group in state["param_groups"]:
        del group["skipped"], group["steps"]
    return model, state, generators


@pytest.mark.parametrize("way", ["host", "accelerator"])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize("lost", [nan_loss, infinite_loss, nan_gradient, infinite_gradient])
def test_it_is_as_if_it_had_not_come(
    way: str, make: Any, warm_up: int, lost: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "accelerator":
        as_accelerator(monkeypatch)
    run, finite = make(), []
    run.model.register_forward_pre_hook(
        lambda model, args: finite.append(all(p.isfinite().all() for p in model.parameters()))
    )
    for _ in range(warm_up):
        run.step()
    before, calls = snapshot(run), len(finite)
    run.step({0: lost})
    assert len(finite) > calls
    assert all(finite), "the closure saw weights that are not finite"
    if way == "host":
        assert len(finite) == calls + 1, "there was nothing to measure"
    assert_same(snapshot(run), before)
    assert [int(group["skipped"]) for group in run.optimizer.param_groups] == [1]
    assert run.optimizer.last_search is None
    for _ in range(3):
        run.step()
    after = snapshot(run)
    clean = make()  # seeds the generators again
    for _ in range(warm_up + 3):
        clean.step()
    assert_same(snapshot(clean), after)
    assert all(finite)


class Bursting(torch.optim.SGD):
    """Puts one weight where no weight should be, when told to."""

    weight: float | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        if self.weight is not None:
            self.param_groups[0]["params"][0].view(-1)[0] = self.weight


@pytest.mark.parametrize("way", ["host", "accelerator"])
@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf])
def test_nor_is_a_base_s_update_tried_that_is_not_finite(
    way: str, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "accelerator":
        as_accelerator(monkeypatch)
    run = wrapped_run.Run(lambda params: Bursting(params, lr=0.1, momentum=0.9), search_prob=1.0)
    finite = []
    run.model.register_forward_pre_hook(
        lambda model, args: finite.append(all(p.isfinite().all() for p in model.parameters()))
    )
    run.step()
    before = snapshot(run)
    run.base.weight = weight
    run.step()
    assert all(finite)
    assert_same(snapshot(run), before)
    assert int(run.group["skipped"]) == 1
