"""A small run whose unsearched steps can be recorded, on any device."""

from __future__ import annotations

import copy
import gc
import math
import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from wrapped_run import is_well

import cgq.vectors.workspace
from cgq import CGQ, LineSearch, fletcher_reeves, join, side_by_side
from cgq.vectors.layout import Layout
from cgq.vectors.recording import Recorder, Recording


class Case(NamedTuple):
    """An optimizer, by the parameters of two layers, and whether memory is in one piece."""

    make: Callable[[list[Tensor], list[Tensor]], Any]
    joined: bool = False


def cgq_of(**options: Any) -> Callable[[list[Tensor], list[Tensor]], Any]:
    options = {"search_prob": 0.2, "lr": 0.1} | options
    return lambda first, second: CGQ(first + second, **options)


def wrapped(kind: Any, **options: Any) -> Callable[[list[Tensor], list[Tensor]], Any]:
    return lambda first, second: LineSearch(
        kind(first + second, lr=0.01, **options), search_prob=0.2
    )


def two_groups(first: list[Tensor], second: list[Tensor]) -> CGQ:
    groups = [{"params": first, "lr": 0.1}, {"params": second, "lr": 0.05, "weight_decay": 0.01}]
    return CGQ(groups, search_prob=0.2, smoothing=0.5)


CASES = {
    "rule": Case(cgq_of()),
    "rule joined": Case(cgq_of(), joined=True),
    "smoothed": Case(cgq_of(smoothing=0.5, momentum=fletcher_reeves)),
    "never searched": Case(cgq_of(search_prob=0.0)),
    "constant": Case(cgq_of(momentum=0.9)),
    "constant joined": Case(cgq_of(momentum=0.9), joined=True),
    "none": Case(cgq_of(momentum=0.0)),
    "nesterov": Case(cgq_of(nesterov=True)),
    "constant nesterov": Case(cgq_of(momentum=0.5, nesterov=True)),
    "decay": Case(cgq_of(weight_decay=0.01)),
    "decoupled": Case(cgq_of(weight_decay=0.01, decoupled_weight_decay=True)),
    "relative": Case(cgq_of(max_relative_step=0.01, lr=10.0)),
    "relative joined": Case(cgq_of(max_relative_step=0.01, lr=10.0), joined=True),
    "relative decoupled": Case(
        cgq_of(max_relative_step=0.01, weight_decay=0.1, decoupled_weight_decay=True)
    ),
    "maximize": Case(cgq_of(maximize=True, lr=0.001)),
    "two groups": Case(two_groups),
    "adamw": Case(wrapped(torch.optim.AdamW)),
    "adamw joined": Case(wrapped(torch.optim.AdamW), joined=True),
    "sgd": Case(wrapped(torch.optim.SGD, momentum=0.9)),
    "sgd joined": Case(wrapped(torch.optim.SGD, momentum=0.9, nesterov=True), joined=True),
    "plain sgd": Case(wrapped(torch.optim.SGD, weight_decay=0.01)),
}
_FUSED = wrapped(torch.optim.AdamW, capturable=True, fused=True)
ON_CUDA = CASES | {
    "capturable joined": Case(wrapped(torch.optim.AdamW, capturable=True), joined=True),
    "fused": Case(_FUSED),
    "fused joined": Case(_FUSED, joined=True),
    "rmsprop joined": Case(
        wrapped(torch.optim.RMSprop, capturable=True, momentum=0.5), joined=True
    ),
}


class Run:
    def __init__(self, case: Case, device: str = "cpu") -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4, bias=False)
        ).to(device)
        self.params = list(self.model.parameters())
        self.places: Any = None
        if case.joined:
            join(self.params)
            self.places = side_by_side(self.params)
        self.optimizer = case.make(self.params[:2], self.params[2:])
        self.inputs = torch.randn(64, 16, 4, device=device)
        self.number = 0

    def step(self, factor: float = 1.0, *, with_loss: bool = True) -> Any:
        """On the next batch, whose loss and gradient are multiplied by `factor`."""
        inputs = self.inputs[self.number % len(self.inputs)]
        self.number += 1
        is_well(self.optimizer)

        def closure(backward: bool) -> Tensor:
            loss = factor * (self.model(inputs) - inputs.flip(-1)).square().mean()
            if backward:
                loss.backward()
                for param, place in zip(self.params, self.places or [], strict=bool(self.places)):
                    param.grad = place.copy_(param.grad)
            return loss.detach()

        if with_loss:
            return self.optimizer.step(closure)
        self.optimizer.zero_grad()
        with torch.enable_grad():
            closure(True)
        return self.optimizer.step()

    def facts(self) -> dict[str, Any]:
        """All that two equal runs have in common, to the last bit."""
        state = self.optimizer.state_dict()
        return {
            "model": {name: v.cpu().clone() for name, v in self.model.state_dict().items()},
            "groups": [
                {name: number for name, number in group.items() if name != "params"}
                for group in state["param_groups"]
            ],
            "state": [
                {name: torch.as_tensor(value).cpu().clone() for name, value in entry.items()}
                for entry in state["state"].values()
                if not any(value is None for value in entry.values())
            ],
        }

    @property
    def recordings(self) -> list[Recording]:
        """Of steps that are not searched; one where the base is recorded too."""
        if self.base_is_recorded:
            return [self.optimizer._workspace.of_base.whole]
        return self._found("unsearched", "beginning", "ending")

    @property
    def base_is_recorded(self) -> bool:
        """As it may be where gradients stay where they are."""
        of_base = getattr(self.optimizer._workspace, "of_base", None)
        return of_base is not None and are_recorded([of_base.whole])

    @property
    def of_searches(self) -> list[Recording]:
        options = self.optimizer.options
        names = ["opening", "outset", "landing"] + ["second"] * options.shrinks_trial
        return self._found(*names)

    def _found(self, *names: str) -> list[Recording]:
        workspace = vars(self.optimizer._workspace)
        return [workspace[name] for name in names if name in workspace]

    @property
    def is_recorded(self) -> bool:
        return are_recorded(self.recordings)


def are_recorded(recordings: list[Recording]) -> bool:
    return all(recording._replay is not None for recording in recordings)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """NaN is itself here."""
    for mine, its in zip(one["groups"], other["groups"], strict=True):
        assert mine.keys() == its.keys()
        for name in mine:
            both_nan = mine[name] != mine[name] and its[name] != its[name]
            assert both_nan or mine[name] == its[name], name
    for part in ("model", "state"):
        torch.testing.assert_close(one[part], other[part], rtol=0, atol=0, equal_nan=True)


def record_with(patch: pytest.MonkeyPatch, recorder: Callable[[Layout], Recorder | None]) -> None:
    """Let optimizers that are made from now on use this recorder, or none."""
    patch.setattr(cgq.vectors.workspace, "recorder_for", recorder)


BAD = {13: math.nan, 17: math.inf, 19: -math.inf}


def always_searched(*runs: Run) -> None:
    for run in runs:
        run.optimizer._is_due = lambda: True


def assert_same_search(one: Run, other: Run) -> None:
    mine, its = one.optimizer.last_search, other.optimizer.last_search
    assert (mine is None) == (its is None)
    assert mine is None or str(mine) == str(its)  # where NaN is itself


def without_a_loss(plain: Run, recorded: Run, steps: int) -> None:
    """Steps that only have gradients: the same bits."""
    for _ in range(steps):
        for run in (plain, recorded):
            run.step(with_loss=False)
    assert_same(recorded.facts(), plain.facts())
    assert recorded.is_recorded


def searched(plain: Run, recorded: Run, bad: Mapping[int, float]) -> None:
    """Each batch is searched: the same bits, also where a batch is bad."""
    always_searched(plain, recorded)
    for number in range(45):
        for run in (plain, recorded):
            run.step(bad.get(number, 1.0))
        assert_same_search(plain, recorded)
        if number % 5 == 0:
            assert_same(recorded.facts(), plain.facts())
    assert_same(recorded.facts(), plain.facts())
    assert are_recorded(recorded.of_searches)
    assert int(recorded.optimizer.param_groups[0]["skipped"]) >= 2


def searched_now_and_then(plain: Run, recorded: Run, bad: Mapping[int, float]) -> None:
    """Two of three batches are searched: the same bits."""
    for number in range(60):
        for run in (plain, recorded):
            due = number % 3 != 0
            run.optimizer._is_due = lambda due=due: due
            run.step(bad.get(number, 1.0))
        assert_same_search(plain, recorded)
    assert_same(recorded.facts(), plain.facts())
    assert are_recorded(recorded.of_searches)
    assert recorded.is_recorded


def with_rates_that_change(plain: Run, recorded: Run) -> None:
    """At once, in each step, and between groups: the same bits, and the same searches."""
    for number in range(40):
        for run in (plain, recorded):
            for group in run.optimizer.param_groups:
                group["lr"] *= 0.5 if number == 10 else 0.99 if number in range(20, 30) else 1.0
            if number == 30:
                run.optimizer.param_groups[-1]["lr"] *= 0.7
            run.step()
        assert_same_search(plain, recorded)
    assert_same(recorded.facts(), plain.facts())


def resumed(run: Run, case: Case, device: str = "cpu") -> Run:
    """Another run that goes on from a checkpoint of this one."""
    other = Run(case, device)
    other.number = run.number
    other.model.load_state_dict(run.model.state_dict())
    state = copy.deepcopy(run.optimizer.state_dict())
    other.optimizer.load_state_dict(pickle.loads(pickle.dumps(state)))
    return other


def memory_that_stays() -> int:
    """What a GPU has given and not got back."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()
