"""A budget of time, as it is typed: most worth first, and the same command goes on."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from test_cli import cgq, check_succeeded
from test_runner import Killed, bytes_after, cell_of

from cgqbench.cli import commands, run
from cgqbench.cli.budget import clock, going_on, reached, seconds_of, what_is_left
from cgqbench.cli.progress import Board
from cgqbench.cli.run import command_line
from cgqbench.experiments.cell import Cell
from cgqbench.experiments.experiment import Column, Experiment
from cgqbench.records import latest_state
from cgqbench.records.checkpoint import Checkpoint
from cgqbench.records.identity import record_path
from cgqbench.records.latest_state import LatestState
from cgqbench.records.reading import runs
from cgqbench.records.record import Record
from cgqbench.training.deadline import Deadline
from cgqbench.training.engines import Ended, Started
from cgqbench.training.engines.events import Event
from cgqbench.training.runner import Conditions, run_cell

SLOW = str(Path(__file__).with_name("slow_task.py"))
EPOCHS = 12


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("25m", 1500), ("90s", 90), ("1h", 3600), ("90", 90), ("0.5h", 1800), ("1.5m", 90)],
)
def test_a_budget_is_a_number_and_its_unit(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "25 m", "-5m", "0", "0.0h", "1d", "m", "1e3", "nan", "inf", "1h30m", "٣m"]
)
def test_anything_else_is_refused_with_the_cure(text):
    with pytest.raises(ValueError, match=r"no budget of time.*--budget 90s.*25m.*1h"):
        seconds_of(text)


def test_on_the_command_line_too(tmp_path):
    words = ["reproduce", "table1", "--only", "mnist", "--out", str(tmp_path)]
    result = cgq(*words, "--budget", "soon")
    assert result.exit_code == 2
    assert "--budget 25m" in result.output
    assert list(tmp_path.iterdir()) == [], "nothing was begun"
    assert cgq("reproduce", "figure1", "--budget", "1m").exit_code == 2


class Slow(Experiment):
    """Two methods on a task whose epochs last at least 0.16 s; the first is worth more."""

    def cells(self, seeds, only=(), epochs=None, average=True):
        return [
            Cell("slow", "slow", "task", method, seed, EPOCHS, 32, average, SLOW)
            for seed in range(seeds)
            for method in self.methods
        ]


@pytest.fixture
def slow(monkeypatch):
    column = Column("slow", "task", EPOCHS)
    experiment = Slow("slow", "Slow", (column,), ("adam", "scgq"))
    monkeypatch.setitem(commands.EXPERIMENTS, "slow", experiment)
    return experiment.cells(seeds=1)


def contents(out: Path) -> dict[str, bytes]:
    """The records, but for the command that made them, which names the folder."""
    return {run.path.name: b"\n".join(run.path.read_bytes().splitlines()[1:]) for run in runs(out)}


def epochs_recorded(out: Path) -> int:
    return sum(len(run.epochs) for run in runs(out)) if out.exists() else 0


def test_spent_again_and_again_it_leaves_the_records_of_one_go(slow, tmp_path, monkeypatch):
    check_succeeded(cgq("reproduce", "slow", "--seeds", "1", "--out", str(tmp_path / "whole")))
    out, budget, outputs = tmp_path / "pieces", 0.01, list[str]()
    while not outputs or "are left" in outputs[-1]:
        words = ["reproduce", "slow", "--seeds", "1", "--jobs", "1", "--out", str(out)]
        words += ["--budget", f"{budget:g}s"]
        monkeypatch.setattr(sys, "argv", ["cgq", *words])
        before = epochs_recorded(out)
        result = cgq(*words)
        check_succeeded(result)
        if not outputs:
            assert "Of 2 runs 2 are left" in result.output
            methods = [run.header["method"] for run in runs(out)]
            assert set(methods) <= {"scgq"}, "worth more than adam, so nothing else has begun"
        in_vain = epochs_recorded(out) == before
        assert ("No epoch came to its end in this budget" in result.output) == in_vain
        if "are left" in result.output:
            going_on = result.output.rstrip().endswith(f"to go on: cgq {' '.join(words)}")
            assert going_on != in_vain, "not in the same budget"
        assert in_vain or outputs, "a hundredth of a second is too short"
        outputs.append(result.output)
        budget = max(0.5, 2 * budget)  # however long a process takes to begin
    assert len(outputs) > 1
    assert contents(out) == contents(tmp_path / "whole")
    assert list(out.rglob("*.ckpt*")) == []
    assert "report.html" in outputs[-1]
    assert "--budget" not in (out / "records/slow/slow-task-scgq-0.jsonl").read_text()


def test_a_finished_run_that_is_another_does_not_keep_the_rest_from_being_run(slow, tmp_path):
    words = ["reproduce", "slow", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path)]
    cell = slow[0]
    path = record_path(cell, tmp_path / "records")
    run_cell(replace(cell, epochs=1), Conditions(tmp_path / "records"))
    before = path.read_bytes()
    refused = cgq(*words)
    assert refused.exit_code == 2
    assert "epochs 1, not 12. Remove" in " ".join(refused.output.split())
    result = cgq(*words, "--budget", "60s")
    check_succeeded(result)
    printed = " ".join(result.output.split())
    assert "1 finished run, not as asked for now, left as found; the first:" in printed
    assert "epochs 1, not 12" in printed
    assert path.read_bytes() == before
    assert record_path(slow[1], tmp_path / "records").exists()


def test_a_failure_is_not_blamed_on_the_budget(slow, tmp_path, monkeypatch):
    def failing(cells, conditions, jobs):
        for cell in cells:
            yield from (Event(cell, Started()), Event(cell, Ended("out of memory")))

    monkeypatch.setitem(run.ENGINES, "local", failing)
    words = ["reproduce", "slow", "--seeds", "1", "--out", str(tmp_path), "--budget", "1m"]
    monkeypatch.setattr(sys, "argv", ["cgq", *words])
    result = cgq(*words)
    assert result.exit_code == 1
    assert "out of memory" in result.output
    assert "No epoch came to its end" not in result.output
    assert "Of 2 runs 2 are left" in result.output


def test_a_budget_that_ends_a_run_was_not_too_short(slow, tmp_path, monkeypatch):
    """As of a run that was killed between its last epoch and its last line."""

    def ending(cells, conditions, jobs):
        yield Event(slow[0], Started())
        with Record(record_path(slow[0], conditions.records)) as record:
            record.append({"kind": "end", "status": "diverged"})
        yield Event(slow[0], Ended())

    monkeypatch.setitem(run.ENGINES, "local", ending)
    words = ["reproduce", "slow", "--seeds", "1", "--out", str(tmp_path), "--budget", "1m"]
    monkeypatch.setattr(sys, "argv", ["cgq", *words])

    def tell(news):
        if isinstance(news, dict):
            raise Killed

    with pytest.raises(Killed):
        run_cell(slow[0], Conditions(tmp_path / "records"), tell)
    output = cgq(*words).output
    assert "Of 2 runs 1 are left" in output
    assert "No epoch came to its end" not in output


def test_what_is_left_is_counted_in_runs_and_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["cgq", "reproduce", "x", "--restart", "--out", "a b"])
    cells = [cell_of("sgd", seed) for seed in range(3)]
    bytes_after(cells[0], tmp_path)
    old = Checkpoint(record_path(cells[0], tmp_path).with_suffix(".ckpt"))
    old.save({}, 1)  # as where it was killed before its checkpoint was removed

    def tell(news):
        if isinstance(news, dict) and news["epoch"] == 3:
            raise Killed

    with pytest.raises(Killed):
        run_cell(cells[1], Conditions(tmp_path), tell)
    assert what_is_left(cells, tmp_path) == (
        "Of 3 runs 2 are left, 1 of them begun, with 5 epochs in all"
    )
    assert going_on() == "cgq reproduce x --out 'a b'"
    assert reached(cells, tmp_path) == (7, 1)
    assert what_is_left(cells[:1], tmp_path) is None
    assert not record_path(cells[2], tmp_path).exists(), "it only looks"


def test_epochs_that_come_again_after_a_kill_are_left(tmp_path, monkeypatch):
    cell = cell_of("sgd")

    def tell(news):
        if isinstance(news, dict) and news["epoch"] == 3:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(LatestState, "__exit__", lambda *_: None)  # killed without a word
        patch.setattr(latest_state, "SHARE", 1e-9)  # only the first epoch's state is written
        run_cell(cell, Conditions(tmp_path), tell)
    (run,) = runs(tmp_path)
    assert len(run.epochs) == 3
    assert "with 3 epochs in all" in what_is_left([cell], tmp_path), "4, of which 1 is kept"
    assert reached([cell], tmp_path) == (1, 0)
    seen = []
    run_cell(cell, Conditions(tmp_path, resume=True), seen.append)
    assert len([news for news in seen if isinstance(news, dict)]) == 3


def test_the_command_in_a_record_knows_no_budget_and_no_place(monkeypatch):
    for words in (
        ["--budget", "25m"],
        ["--budget=25m", "--resume"],
        ["--out", "/home/me/out", "--resume"],
        ["--out=a=b", "--budget", "1h"],
        ["--out="],
        [],
    ):
        monkeypatch.setattr(sys, "argv", ["cgq", "reproduce", *words, "table2", "--jobs", "6"])
        assert command_line() == "cgq reproduce table2 --jobs 6"


def test_the_bar_shows_the_time_left(tmp_path):
    cell = cell_of("sgd")
    row = {"epoch": 1, "train_loss": 0.5, "test_accuracy": 90.0, "step_size": 1, "momentum": 0}
    for terminal in (True, False):
        with (tmp_path / "screen").open("w+") as file:
            console = Console(file=file, force_terminal=terminal, width=150)
            with Board(2, console, Deadline.after(90061)) as board:
                board.show(cell, Started())
                board.show(cell, row)
                board.show(cell, Ended(out_of_time=True))
            file.seek(0)
            text = file.read()
        assert "25:01:0" in text
        assert "of the budget left" in text
        assert "1/2" not in text, "what is stopped has not ended"
    assert clock(59.9) == "0:59"


def test_without_a_budget_no_bar_speaks_of_one(tmp_path):
    with (tmp_path / "screen").open("w+") as file:
        with Board(1, Console(file=file, force_terminal=True, width=150)) as board:
            board.show(cell_of("sgd"), Started())
        file.seek(0)
        assert "budget" not in file.read()
