"""The train loss within an epoch: as the steps were, and as the record gives them back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from made_records import row, write

from cgqbench.experiments.cell import Cell
from cgqbench.records.reading import read_run, runs
from cgqbench.records.train_curve import STRETCHES, stretch, train_curve
from cgqbench.training.meter import Meter
from cgqbench.training.runner import Conditions, run_cell

TASK = str(Path(__file__).parent / "small_task.py")


@pytest.mark.parametrize("batches", [1, 7, 19, 20, 21, 150, 180, 200, 938])
def test_stretches_are_few_and_cover_the_epoch(batches: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    meter = Meter(batches)
    for loss in range(batches):
        meter.add(torch.tensor(float(loss)), optimizer)
    means = meter.row(optimizer)["train_losses"]
    size = stretch(batches)
    parts = [range(batches)[at : at + size] for at in range(0, batches, size)]
    assert means == [float(f"{sum(part) / len(part):.6g}") for part in parts]
    assert len(means) <= STRETCHES
    assert size == 1 or 2 * len(means) > STRETCHES


def test_a_stretch_that_is_not_finite_is_null_and_leaves_the_others() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    meter = Meter(3)
    for loss in (1.0, float("nan"), 3.0):
        meter.add(torch.tensor(loss), optimizer)
    assert meter.row(optimizer)["train_losses"] == [1.0, None, 3.0]


def test_a_record_gives_back_steps_and_losses(tmp_path: Path) -> None:
    cell = Cell("test", "small", "task", "sgd:lr=0.1", 0, epochs=3, batch_size=8, task=TASK)
    run_cell(cell, Conditions(tmp_path))
    (run,) = runs(tmp_path)
    assert run.header["batches"] == 29  # 230 examples in batches of 8: stretches of two
    steps, losses = train_curve(run)
    one = [*range(2, 29, 2), 29]
    assert steps == [29 * epoch + step for epoch in range(3) for step in one]
    for epoch in range(3):
        part = losses[15 * epoch : 15 * (epoch + 1)]
        mean = (2 * sum(part[:-1]) + part[-1]) / 29
        assert mean == pytest.approx(run.epochs[epoch]["train_loss"], rel=1e-5)


def test_older_records_have_none(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, [row(1, train_loss=0.5)]))
    assert run is not None
    assert train_curve(run) == ([], [])


def test_tensorboard_is_given_numbers_only(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    cell = Cell("test", "small", "task", "sgd:lr=0.1", 0, epochs=1, task=TASK)
    run_cell(cell, Conditions(tmp_path, tensorboard=tmp_path / "board"))
    assert list((tmp_path / "board").rglob("events*"))
