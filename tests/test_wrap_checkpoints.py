"""LineSearch saved, loaded, copied, pickled: it goes on bit for bit."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_transactions import assert_same
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from wrapped_run import adamw, is_well

from cgq import LineSearch

BASES: dict[str, Callable[[Any], Any]] = {
    "adamw": adamw,
    "lifted": lambda params: torch.optim.SGD(params, lr=1e-9, momentum=0.9),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
}


class Job:
    """A run whose batches depend on nothing but their number."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = LineSearch(make(self.model.parameters()), search_prob=0.3)
        self.searched: list[bool] = []

    def train(self, start: int, end: int) -> Job:
        for number in range(start, end):
            draw = torch.Generator().manual_seed(number)
            x, y = torch.randn(8, 4, generator=draw), torch.randn(8, 1, generator=draw)
            self.optimizer.step(lambda x=x, y=y: nn.functional.mse_loss(self.model(x), y))
            self.searched.append(self.optimizer.last_search is not None)
        return self

    def all(self) -> Any:
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))


def reloaded(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("make", BASES.values(), ids=BASES.keys())
def test_a_resumed_run_goes_on_bit_for_bit(make: Any, quiet: bool) -> None:
    job = Job(make).train(0, 9)
    if quiet:
        is_well(job.optimizer)
    model, state = reloaded(job.all())
    job.train(9, 20)
    other = Job(make)
    other.model.load_state_dict(model)
    other.optimizer.load_state_dict(state)
    other.train(9, 20)
    assert_same(other.all(), job.all())
    assert other.searched == job.searched[9:]
    if quiet:
        assert not all(other.searched)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_goes_on_like_the_original(copied: Any) -> None:
    job = Job(adamw).train(0, 5)
    other = Job(adamw)
    other.model, other.optimizer = copied((job.model, job.optimizer))
    assert other.optimizer.base is not job.optimizer.base
    assert other.optimizer.param_groups is other.optimizer.base.param_groups
    job.train(5, 10)
    other.train(5, 10)
    assert_same(other.all(), job.all())


def test_a_bare_optimizer_s_checkpoint_loads_and_the_other_way_round() -> None:
    job = Job(adamw).train(0, 5)
    bare = adamw(job.model.parameters())
    bare.load_state_dict(reloaded(job.optimizer.state_dict()))
    for mine, its in zip(bare.state.values(), job.optimizer.state.values(), strict=True):
        assert_same(mine, its)
    plain = Job(adamw)
    state = adamw(plain.model.parameters()).state_dict()
    plain.optimizer.load_state_dict(state)
    assert plain.optimizer.param_groups[0]["average"] == 0.0
    assert plain.optimizer.param_groups[0]["full_lr"] == 0.01
    plain.train(0, 3)
    assert plain.optimizer.param_groups[0]["steps"] == 3


@pytest.mark.parametrize("make", BASES.values(), ids=BASES.keys())
def test_asking_for_a_first_state_is_no_step(make: Any) -> None:
    job = Job(make)
    before = copy.deepcopy(job.optimizer.state_dict()["param_groups"])
    for _ in range(2):  # a base without moments is asked each time
        get_optimizer_state_dict(job.model, job.optimizer)
    assert_same(job.optimizer.state_dict()["param_groups"], before)
    for group in job.optimizer.param_groups:  # a first step of a warm-up is one
        group["lr"] = 0.0
    job.optimizer.base.state.clear()
    job.model(torch.ones(2, 4)).sum().backward()
    job.optimizer.step()
    assert job.optimizer.param_groups[0]["steps"] == 1


def test_a_checkpoint_in_files_is_loaded_whole(tmp_path: Path) -> None:
    """Into what a fresh optimizer has: all numbers have to be there from the start."""
    job, other = Job(adamw).train(0, 9), Job(adamw)
    other.model.load_state_dict(job.model.state_dict())
    saved = get_optimizer_state_dict(job.model, job.optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable")
        checkpoint.save(saved, checkpoint_id=str(tmp_path))
        state = get_optimizer_state_dict(other.model, other.optimizer)
        checkpoint.load(state, checkpoint_id=str(tmp_path))
    set_optimizer_state_dict(other.model, other.optimizer, state)
    assert_same(other.all(), job.all())
    assert_same(other.train(9, 15).all(), job.train(9, 15).all())


def test_distributed_checkpoints_hold_the_base_s_state() -> None:
    job = Job(adamw).train(0, 9)
    state = copy.deepcopy(get_optimizer_state_dict(job.model, job.optimizer))
    other = Job(adamw)
    other.model.load_state_dict(job.model.state_dict())
    set_optimizer_state_dict(other.model, other.optimizer, state)
    job.train(9, 15)
    other.train(9, 15)
    assert_same(other.all()[0], job.all()[0])
    assert other.optimizer.param_groups[0]["steps"] == 15


def test_a_group_added_later_takes_part() -> None:
    job = Job(adamw).train(0, 3)
    extra = nn.Parameter(torch.ones(2))
    job.optimizer.add_param_group({"params": [extra], "lr": 0.001})
    assert len(job.optimizer.base.param_groups) == 2
    job.optimizer.step(lambda: job.model(torch.ones(1, 4)).square().sum() + extra.square().sum())
    first, second = job.optimizer.param_groups
    assert second["step_size"] == pytest.approx(first["step_size"] / 10)
    assert not torch.equal(extra, torch.ones(2))


def test_the_base_may_be_loaded_on_its_own() -> None:
    job = Job(adamw).train(0, 5)
    job.optimizer.base.load_state_dict(copy.deepcopy(job.optimizer.base.state_dict()))
    job.train(5, 10)
    assert_same(job.all(), Job(adamw).train(0, 10).all())


def test_the_base_may_load_what_an_older_version_saved() -> None:
    weight = nn.Parameter(torch.ones(5))
    optimizer = LineSearch(torch.optim.AdamW([weight]))
    for _ in range(3):
        optimizer.step(lambda: weight.square().sum())
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["param_groups"]:
        del group["known_rate"]
    optimizer.base.load_state_dict(state)
    optimizer.step(lambda: weight.square().sum())
    assert optimizer.param_groups[0]["known_rate"] > 0.0
