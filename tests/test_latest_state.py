"""Checkpoints now and then: a share of the time, nothing lost in order, little lost when killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from test_runner import TASK, Killed, bytes_after, cell_of
from torch import Tensor

from cgqbench.experiments.cell import Cell
from cgqbench.records import latest_state as module
from cgqbench.records import record as record_module
from cgqbench.records.checkpoint import Checkpoint
from cgqbench.records.identity import record_path
from cgqbench.records.latest_state import SHARE, LatestState, on_host
from cgqbench.records.record import Record, times_of
from cgqbench.training.deadline import Deadline
from cgqbench.training.engines.local import local
from cgqbench.training.runner import Conditions, run_cell

CPU = torch.device("cpu")
LONG = 100  # epochs: more than a process takes before it hears that it is to stop


class Disk(Checkpoint):
    """A disk that takes a second to write, and a clock that goes on meanwhile."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.now, self.writes = 100.0, list[int]()

    def save(self, content: object, epoch: int | None = None) -> None:
        super().save(content, epoch)
        assert self.epoch == epoch
        self.writes.append(self.load(CPU)["epoch"])
        self.now += 1.0


@pytest.fixture
def disk(tmp_path, monkeypatch):
    disk = Disk(tmp_path / "cell.ckpt")
    monkeypatch.setattr(module.time, "monotonic", lambda: disk.now)
    return disk


def test_writing_takes_its_share_of_the_time_and_no_more(disk):
    epochs, seconds = 200, 2.0
    with LatestState(disk) as latest:
        for epoch in range(1, epochs + 1):
            disk.now += seconds
            latest.keep({"epoch": epoch}, epoch)
    assert disk.writes[0] == 1, "until then there is nothing to go on from"
    assert disk.writes[-1] == epochs
    waits = {later - earlier for earlier, later in zip(disk.writes, disk.writes[1:], strict=False)}
    assert len(disk.writes) > 10
    assert min(waits - {epochs - disk.writes[-2]}) * seconds >= 1.0 / SHARE
    assert max(waits) * seconds < 1.0 / SHARE + seconds, "and no less"


def test_what_writes_quickly_is_written_each_epoch(disk):
    with LatestState(disk) as latest:
        for epoch in (1, 2, 3):
            disk.now += 1.0 / SHARE
            latest.keep({"epoch": epoch}, epoch)
            assert disk.writes[-1] == epoch
    assert disk.writes == [1, 2, 3], "and not once more at the end"


def test_the_state_is_the_epochs_although_training_goes_on(disk):
    weights, moments = torch.zeros(3), [torch.zeros(3)]
    state = {"epoch": 0, "weights": weights, "optimizer": {"moments": moments, "pair": (1, 2)}}
    with pytest.raises(Killed), LatestState(disk) as latest:
        for epoch in (1, 2):
            weights.fill_(epoch)
            moments[0].fill_(-epoch)
            latest.keep(state | {"epoch": epoch}, epoch)
        assert disk.writes == [1]
        weights.fill_(99)
        raise Killed
    found = disk.load(CPU)
    assert found["epoch"] == 2
    assert found["optimizer"]["pair"] == (1, 2)
    assert torch.equal(found["weights"], torch.full((3,), 2.0))
    assert torch.equal(found["optimizer"]["moments"][0], torch.full((3,), -2.0))


def test_a_run_at_its_end_leaves_no_state(disk):
    with LatestState(disk) as latest:
        latest.keep({"epoch": 1}, 1)
        latest.keep({"epoch": 2}, 2)
        latest.discard()
    assert disk.writes == [1]
    assert not disk.exists()


@pytest.mark.parametrize("method", ["adam", "scgq"])
def test_epochs_after_the_last_checkpoint_of_a_killed_run_come_again(method, tmp_path, monkeypatch):
    """As after `kill -9`: no block was left in order, so the checkpoint is of the first epoch."""
    cell = cell_of(method, epochs=6)
    whole = bytes_after(cell, tmp_path / "whole")
    folder = tmp_path / "killed"

    def tell(news):
        if isinstance(news, dict) and news["epoch"] == 4:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "SHARE", 1e-9)
        patch.setattr(LatestState, "__exit__", lambda *_: None)
        with pytest.raises(Killed):
            run_cell(cell, Conditions(folder), tell)
    path = record_path(cell, folder)
    assert Checkpoint(path.with_suffix(".ckpt")).load(CPU)["row"]["epoch"] == 1
    assert path.read_bytes().count(b"\n") == 1 + 4
    told: list[int] = []
    run_cell(
        cell,
        Conditions(folder, resume=True),
        lambda news: told.append(news["epoch"]) if isinstance(news, dict) else None,
    )
    assert told == [2, 3, 4, 5, 6]
    assert path.read_bytes() == whole
    assert times_of(path).read_bytes().count(b"\n") == 6


def stopped_in_a_process(cell: Cell, folder: Path, how: str) -> None:
    """Begin a cell in a process of its own, and stop that after some epochs."""
    events = local([cell], Conditions(folder), 1)
    for event in events:
        if isinstance(event.news, dict) and event.news["epoch"] == 5:
            if how == "told":
                events.close()  # as Ctrl-C does
            else:
                (process,) = multiprocessing.active_children()
                process.kill()


@pytest.mark.parametrize("how", ["told", "killed"])
def test_a_stopped_process_leaves_what_the_same_run_goes_on_from(how, tmp_path):
    cell = cell_of("adam", epochs=LONG)
    whole = bytes_after(cell, tmp_path / "whole")
    folder = tmp_path / "stopped"
    stopped_in_a_process(cell, folder, how)
    path = record_path(cell, folder)
    with Record(path) as record:
        assert 5 <= record.epochs < LONG
        saved = record.checkpoint.load(CPU)["row"]["epoch"]
        if how == "told":  # nothing but the epoch that was under way is lost
            assert saved - record.epochs in (0, 1)
    run_cell(cell, Conditions(folder, resume=True))
    assert path.read_bytes() == whole
    assert list(path.parent.glob("*.ckpt*")) == []


def timed(path: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in times_of(path).read_text().splitlines()]


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_stop_between_row_and_time_loses_no_time(epoch, tmp_path, monkeypatch):
    cell = cell_of("sgd")
    append = Record.append

    def stopped(record, line):
        append(record, line)
        if line.get("epoch") == epoch:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Record, "append", stopped)
        with pytest.raises(Killed):
            run_cell(cell, Conditions(tmp_path))
    run_cell(cell, Conditions(tmp_path, resume=True))
    assert timed(record_path(cell, tmp_path)) == [1, 2, 3, 4]


def test_a_cut_that_is_killed_half_way_is_made_whole(tmp_path, monkeypatch):
    cell = cell_of("sgd", epochs=6)
    whole = bytes_after(cell, tmp_path / "whole")
    folder = tmp_path / "killed"
    path = record_path(cell, folder)

    def tell(news):
        if isinstance(news, dict) and news["epoch"] == 4:
            raise Killed

    cut, calls = record_module._cut, iter([True, False])

    def torn(file, lines):
        if not next(calls):
            raise Killed
        cut(file, lines)

    with monkeypatch.context() as patch:
        patch.setattr(module, "SHARE", 1e-9)
        patch.setattr(LatestState, "__exit__", lambda *_: None)
        with pytest.raises(Killed):
            run_cell(cell, Conditions(folder), tell)
        patch.setattr(record_module, "_cut", torn)
        with pytest.raises(Killed):
            run_cell(cell, Conditions(folder, resume=True))
    assert timed(path) == [1]
    run_cell(cell, Conditions(folder, resume=True))
    assert path.read_bytes() == whole
    assert timed(path) == [1, 2, 3, 4, 5, 6]


def test_a_budget_leaves_time_for_the_last_write(tmp_path, monkeypatch):
    cell = cell_of("sgd")
    save = Checkpoint.save

    def slow(checkpoint, content, epoch):
        save(checkpoint, content, epoch)
        clock.now += 1e4

    class Clock:
        now = 0.0

    clock = Clock()
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(Checkpoint, "save", slow)
    assert not run_cell(cell, Conditions(tmp_path, deadline=Deadline.after(5e3)))
    with Record(record_path(cell, tmp_path)) as record:
        assert record.epochs == 1
        assert record.checkpoint.load(CPU)["row"]["epoch"] == 1


class Pair(NamedTuple):
    first: int
    second: Tensor


def test_a_copy_keeps_types_and_what_containers_hold_besides():
    model = torch.nn.BatchNorm1d(2)
    state = {
        "model": model.state_dict(),
        "counts": Counter("aab"),
        "lists": defaultdict(list, a=[torch.ones(2)]),
        "seen": {1, 2},
        "last": deque([1.0], maxlen=3),
        "pair": Pair(1, torch.zeros(2)),
    }
    copied = on_host(state)
    assert {name: type(value) for name, value in copied.items()} == {
        name: type(value) for name, value in state.items()
    }
    assert copied["model"]._metadata == state["model"]._metadata
    assert copied["lists"]["b"] == []
    assert copied["last"].maxlen == 3
    state["seen"].add(3)
    state["last"].append(2.0)
    state["counts"]["a"] = 0
    state["pair"].second.fill_(9.0)
    state["lists"]["a"][0].fill_(9.0)
    with torch.no_grad():
        model.running_mean.fill_(9.0)
    assert copied["seen"] == {1, 2}
    assert list(copied["last"]) == [1.0]
    assert copied["counts"] == Counter("aab")
    assert float(copied["pair"].second.sum()) == 0.0
    assert float(copied["lists"]["a"][0].sum()) == 2.0
    assert float(copied["model"]["running_mean"].sum()) == 0.0


SELDOM_WRITTEN = """
import itertools, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import torch
from small_task import data, model
from cgqbench.records import latest_state

latest_state.SHARE = 1e-9  # the first epoch's state, and the next when the run is stopped
passes = itertools.count(1)

def loss(output, target):
    if torch.is_grad_enabled() and next(passes) == 20:  # of 4 an epoch
        Path({reached!r}).touch()
    return torch.nn.functional.cross_entropy(output, target)
"""


def begun(out: Path, *words: str) -> subprocess.Popen[str]:
    """A command in a group of its own, several epochs past the last state that it has written."""
    task, reached = out / "task.py", out / "reached"
    task.write_text(SELDOM_WRITTEN.format(folder=str(Path(TASK).parent), reached=str(reached)))
    process = subprocess.Popen(
        [sys.executable, "-m", "cgqbench", *words, "--task", str(task), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while process.poll() is None and not reached.exists():
        time.sleep(0.01)
    assert [Checkpoint(path).epoch for path in out.rglob("*.ckpt")] == [1]
    return process


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="this system has no groups of processes")
@pytest.mark.parametrize("reached", ["the command", "all of its processes"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_told_to_end_keeps_its_last_epoch(number, reached, tmp_path):
    process = begun(tmp_path, "compare", "-m", "adam", "--epochs", "100000")
    kill = os.kill if reached == "the command" else os.killpg
    kill(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "--resume" in output
    with Record(next(tmp_path.rglob("*-0.jsonl"))) as record:
        saved = record.checkpoint.load(CPU)["row"]["epoch"]
        assert saved - record.epochs in (0, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_so_does_a_landscape(number, tmp_path):
    words = ["--epochs", "100000", "--looks", "3", "--quiet"]
    process = begun(tmp_path, "landscape", *words)
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "--resume" in output
    (path,) = tmp_path.rglob("*.ckpt")
    assert Checkpoint(path).load(CPU)["epoch"] > 3
