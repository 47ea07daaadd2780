"""A run that is stopped by the clock: never in the wrong place, and resumed to the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_runner import bytes_after, cell_of

from cgqbench.experiments.cell import Cell
from cgqbench.records.identity import record_path
from cgqbench.records.reading import read_run
from cgqbench.training import deadline as deadlines
from cgqbench.training import epoch, runner
from cgqbench.training.deadline import Deadline
from cgqbench.training.engines import ENGINES, Ended, Started
from cgqbench.training.meter import BatchProgress
from cgqbench.training.runner import Conditions, run_cell

BATCHES = 8
SLOW = str(Path(__file__).with_name("slow_task.py"))


class Clock:
    """A clock that goes on only while batches are trained."""

    def __init__(self, monkeypatch, seconds_a_batch) -> None:
        self.now = 0.0
        self.told: list[object] = []
        self._seconds = seconds_a_batch
        monkeypatch.setattr(deadlines, "time", self)
        monkeypatch.setattr(runner, "time", self)
        monkeypatch.setattr(epoch, "PATIENCE", -1.0)  # a look at every batch

    def time(self) -> float:
        return self.now

    perf_counter = time

    def tell(self, news) -> None:
        self.told.append(news)
        if isinstance(news, BatchProgress):
            self.now += self._seconds(news.epoch)


def epochs_in(cell: Cell, folder: Path) -> int | None:
    run = read_run(record_path(cell, folder))
    return None if run is None else len(run.epochs)


@pytest.mark.parametrize(
    ("end", "seconds", "epochs", "why"),
    [
        (20.0, lambda epoch: 1, 2, "4 s are left, an epoch takes 8"),
        (24.5, lambda epoch: 1, 2, "8.5 s are left: too close to 8"),
        (25.0, lambda epoch: 1, 3, "9 s are left"),
        (20.0, lambda epoch: 1 if epoch < 2 else 3, 1, "the second is broken off after 12 s"),
        (5.0, lambda epoch: 1, 0, "the first, of which nothing is known, is broken off"),
        (1000.0, lambda epoch: 1, 4, "all of it"),
    ],
)
def test_an_epoch_begins_if_it_fits_and_the_rest_can_be_resumed(
    end, seconds, epochs, why, tmp_path, monkeypatch
):
    cell = cell_of("scgq")
    whole = bytes_after(cell, tmp_path / "whole")
    clock = Clock(monkeypatch, seconds)
    folder = tmp_path / "stopped"
    finished = run_cell(cell, Conditions(folder, deadline=Deadline(end)), clock.tell)
    assert finished == (epochs == 4), why
    assert epochs_in(cell, folder) == epochs, why
    assert clock.now <= end + seconds(4), "at most the batch within which the time was up"
    assert run_cell(cell, Conditions(folder, resume=True), clock.tell)
    assert record_path(cell, folder).read_bytes() == whole


def test_a_resumed_run_knows_how_long_an_epoch_takes(tmp_path, monkeypatch):
    cell = cell_of("sgd")
    clock = Clock(monkeypatch, lambda epoch: 1)
    assert not run_cell(cell, Conditions(tmp_path, deadline=Deadline(10.0)), clock.tell)
    before, told = record_path(cell, tmp_path).read_bytes(), len(clock.told)
    later = Conditions(tmp_path, resume=True, deadline=Deadline(clock.now + BATCHES))
    assert not run_cell(cell, later, clock.tell)
    assert len(clock.told) == told, "nothing was trained, to be thrown away"
    assert record_path(cell, tmp_path).read_bytes() == before


def test_after_the_deadline_nothing_begins(tmp_path, monkeypatch):
    clock = Clock(monkeypatch, lambda epoch: 1)
    assert not run_cell(cell_of("sgd"), Conditions(tmp_path, deadline=Deadline(0.0)), clock.tell)
    assert clock.told == []
    assert epochs_in(cell_of("sgd"), tmp_path) is None
    cells = [cell_of("sgd"), cell_of("adam")]
    assert list(ENGINES["local"](cells, Conditions(tmp_path, deadline=Deadline(-1.0)), 1)) == []


def test_a_finished_cell_is_finished_whatever_the_time(tmp_path):
    cell = cell_of("sgd", epochs=1)
    bytes_after(cell, tmp_path)
    assert run_cell(cell, Conditions(tmp_path, deadline=Deadline(0.0)))


def test_where_one_cell_is_stopped_no_other_begins(tmp_path):
    cells = [Cell("test", "slow", "task", "sgd", seed, 10_000, 32, task=SLOW) for seed in range(3)]
    conditions = Conditions(tmp_path, deadline=Deadline.after(2.0))
    events = list(ENGINES["local"](cells, conditions, 1))
    assert [cell for cell, news in events if isinstance(news, Started)] == cells[:1]
    assert events[-1].news == Ended(out_of_time=True)
