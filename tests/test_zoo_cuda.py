"""On a GPU: every task of the zoo can be captured, and trains as it does without graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from small_zoo import shrink

from cgqbench.experiments.cell import Cell
from cgqbench.records.record import Line
from cgqbench.tasks.zoo import FRESH, MEMBERS, zoo_task
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.epoch import train_epoch
from cgqbench.training.evaluation import evaluated
from cgqbench.training.feed import Feed
from cgqbench.training.learner import Learner

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

STEPS = 8
FEW = 3
"""Steps of LineSearch on a fresh task: to see that it runs, and nothing of how it fares."""


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


def steps_of(name: str, method: str) -> int:
    return FEW if name in FRESH and method == "search" else STEPS


def trained(name: str, method: str, graphs: bool) -> tuple[Line, Line]:
    batch = min(4, MEMBERS[name].batch_size)
    task = replace(zoo_task(name), epoch_size=steps_of(name, method) * batch)
    task = replace(task, test=(task.test[0][:10], task.test[1][:10]))
    cell = Cell("zoo", "zoo", name, method, seed=0, epochs=1, batch_size=batch)
    arithmetic = Arithmetic(torch.device("cuda", 0))
    arithmetic.set_up(1)
    feed = Feed(task, arithmetic.device, batch, cell.seed)
    learner = Learner(cell, task, feed, arithmetic, graphs=graphs)
    row = train_epoch(learner, 1, lambda progress: None)
    return row, evaluated(learner, 1)


@pytest.mark.parametrize("method", ["adamw:lr=0.001", "search"])
@pytest.mark.parametrize("name", MEMBERS)
def test_graphs_change_nothing(name: str, method: str) -> None:
    plain, tested = trained(name, method, graphs=False)
    replayed, tested_too = trained(name, method, graphs=True)
    assert len(plain["train_losses"]) == steps_of(name, method)
    assert replayed["train_losses"][0] == pytest.approx(plain["train_losses"][0], rel=1e-5)
    # Attention and scattered sums add in no fixed order on a GPU.
    assert replayed["train_losses"] == pytest.approx(plain["train_losses"], rel=2e-2)
    assert replayed["passes"] == plain["passes"]
    for key in ("test_loss", "average_test_loss"):
        assert tested_too[key] == pytest.approx(tested[key], rel=2e-2)
