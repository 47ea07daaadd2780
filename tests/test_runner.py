"""Cells: the same start for all, records that survive anything, resuming that is continuing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cgqbench.experiments.cell import Cell, task_of
from cgqbench.methods import METHODS
from cgqbench.records.checkpoint import Checkpoint
from cgqbench.records.identity import record_path, refuse_differences
from cgqbench.records.reading import read_run, runs
from cgqbench.records.record import Record, RecordError, times_of
from cgqbench.tasks.seeds import derived
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.evaluation import on_test_data
from cgqbench.training.feed import Feed
from cgqbench.training.learner import Learner
from cgqbench.training.runner import Conditions, run_cell

TASK = str(Path(__file__).with_name("small_task.py"))
CPU = torch.device("cpu")


def cell_of(method: str, seed: int = 0, epochs: int = 4, **more: object) -> Cell:
    return Cell("test", "small", "task", method, seed, epochs, 32, task=TASK, **more)  # type: ignore[arg-type]


def bytes_after(cell: Cell, folder: Path) -> bytes:
    run_cell(cell, Conditions(folder))
    return record_path(cell, folder).read_bytes()


class Killed(BaseException):
    """The process is gone, as far as this test is concerned."""


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_leaves_the_bytes_of_one_in_a_single_go(method, tmp_path):
    cell = cell_of(method)
    whole = bytes_after(cell, tmp_path / "whole")
    folder = tmp_path / "resumed"
    for stop in (1, 3):

        def tell(news, stop=stop):
            if isinstance(news, dict) and news["epoch"] == stop:
                raise Killed

        with pytest.raises(Killed):
            run_cell(cell, Conditions(folder, resume=True), tell)
        torch.manual_seed(stop)  # another process has other generators
    run_cell(cell, Conditions(folder, resume=True))
    assert record_path(cell, folder).read_bytes() == whole
    lines = [json.loads(line) for line in whole.splitlines()]
    assert [line["kind"] for line in lines] == ["cell", *["epoch"] * 4, "end"]
    assert lines[-1]["status"] == "finished"
    assert all(line["average_test_loss"] > 0 for line in lines[1:-1])
    assert not record_path(cell, folder).with_suffix(".ckpt").exists()


@pytest.mark.parametrize("moment", ["before the checkpoint", "before the row", "in the row"])
def test_a_crash_within_the_writing_of_an_epoch_loses_nothing(moment, tmp_path, monkeypatch):
    cell = cell_of("scgq")
    whole = bytes_after(cell, tmp_path / "whole")
    folder = tmp_path / "crashed"
    with monkeypatch.context() as patch:
        append = Record.append

        def torn(record, line):
            if line.get("epoch") == 2:
                if moment == "in the row":
                    record._file.write(b'{"kind": "epoch", "epo')
                    record._file.flush()
                raise Killed
            append(record, line)

        def unsaved(checkpoint, content, epoch):
            raise Killed

        if moment == "before the checkpoint":
            patch.setattr(Checkpoint, "save", unsaved)
        else:
            patch.setattr(Record, "append", torn)
        with pytest.raises(Killed):
            run_cell(cell, Conditions(folder))
    run_cell(cell, Conditions(folder, resume=True))
    assert record_path(cell, folder).read_bytes() == whole


def test_all_methods_start_at_the_same_point_and_see_the_same_batches():
    starts, orders = [], []
    for method in ("sgd", "cgq", "armijo", "prodigy"):
        cell = cell_of(method, seed=5)
        task = task_of(cell)
        feed = Feed(task, CPU, cell.batch_size, cell.seed)
        learner = Learner(cell, task, feed, Arithmetic(CPU))
        starts.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
        orders.append(torch.cat([targets for _, targets in feed.epoch(3)]))
    for start, order in zip(starts[1:], orders[1:], strict=True):
        assert torch.equal(start, starts[0])
        assert torch.equal(order, orders[0])


def test_initialisation_and_order_have_seeds_of_their_own():
    purposes = [derived(0, purpose) for purpose in ("initialisation", "order", "noise", "method")]
    assert len(set(purposes)) == 4
    assert derived(0, "order", 1) != derived(0, "order", 2) != derived(1, "order", 2)


def test_an_epoch_holds_every_example_once_and_no_two_epochs_are_alike():
    cell = cell_of("sgd")
    task = task_of(cell)
    feed = Feed(task, CPU, 32, 0)
    epochs = [torch.cat([inputs for inputs, _ in feed.epoch(epoch)]) for epoch in (1, 2)]
    assert len(feed) == 8
    assert [len(targets) for _, targets in feed.epoch(1)] == [32] * 7 + [6]
    for epoch in epochs:
        assert torch.equal(epoch.sum(1).sort().values, task.train[0].sum(1).sort().values)
    assert not torch.equal(*epochs)


def test_a_finished_cell_is_not_run_again(tmp_path):
    cell = cell_of("sgd", epochs=1)
    before = bytes_after(cell, tmp_path)
    told = []
    run_cell(cell, Conditions(tmp_path), told.append)
    assert told == []
    assert record_path(cell, tmp_path).read_bytes() == before


def test_a_finished_record_of_another_cell_is_refused_and_kept(tmp_path):
    before = bytes_after(cell_of("sgd", epochs=1), tmp_path)
    with pytest.raises(RecordError, match=r"epochs 1, not 2.*Remove .*jsonl to run this.*--out"):
        run_cell(cell_of("sgd", epochs=2), Conditions(tmp_path))
    assert record_path(cell_of("sgd"), tmp_path).read_bytes() == before


def interrupted(folder: Path) -> Cell:
    cell = cell_of("sgd")

    def tell(news):
        if isinstance(news, dict):
            raise Killed

    with pytest.raises(Killed):
        run_cell(cell, Conditions(folder), tell)
    return cell


def test_an_unfinished_record_needs_leave_to_go_on(tmp_path):
    cell = interrupted(tmp_path)
    before = record_path(cell, tmp_path).read_bytes()
    with pytest.raises(RecordError, match=r"--resume.*--restart"):
        run_cell(cell, Conditions(tmp_path))
    assert record_path(cell, tmp_path).read_bytes() == before


def test_a_run_is_not_continued_with_other_threads(tmp_path):
    cell = interrupted(tmp_path)
    with pytest.raises(RecordError, match="threads 1, not 2"):
        run_cell(cell, Conditions(tmp_path, threads=2, resume=True))
    torch.set_num_threads(1)


def test_a_lost_checkpoint_is_named(tmp_path):
    cell = interrupted(tmp_path)
    record_path(cell, tmp_path).with_suffix(".ckpt").unlink()
    with pytest.raises(RecordError, match=r"missing.*Remove .*jsonl to run this one again"):
        run_cell(cell, Conditions(tmp_path, resume=True))


def half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def words(path: Path) -> None:
    path.write_bytes(b"hello")


def of_a_former_version(path: Path) -> None:
    torch.save({"row": {}, "times": {}, "learner": {}}, path)


def of_another_program(path: Path) -> None:
    Checkpoint(path).save({"weights": torch.ones(3)}, 1)


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (half, "it is no index"),
        (words, "it is no index"),
        (of_a_former_version, "it is no index"),
        (of_another_program, "it is another program's"),
    ],
)
def test_a_checkpoint_that_is_none_is_named_and_the_cure_cures(damaged, reason, tmp_path):
    cell = interrupted(tmp_path)
    damaged(record_path(cell, tmp_path).with_suffix(".ckpt"))
    with pytest.raises(RecordError, match=rf"no whole.*{reason}.*Remove .*jsonl to run this one"):
        run_cell(cell, Conditions(tmp_path, resume=True))
    record = record_path(cell, tmp_path)
    record.unlink()
    run_cell(cell, Conditions(tmp_path, resume=True))
    assert record.read_bytes() == bytes_after(cell, tmp_path / "whole")
    assert [line["epoch"] for line in read_run(record).times] == list(range(1, cell.epochs + 1))


def test_two_processes_cannot_write_one_record(tmp_path):
    path = tmp_path / "cell.jsonl"
    with Record(path), pytest.raises(RecordError, match="another process"):
        Record(path)
    Record(path).close()


def test_a_torn_line_is_cut_off_and_a_broken_one_is_named(tmp_path):
    path = tmp_path / "cell.jsonl"
    path.write_bytes(b'{"kind": "cell"}\n{"kind": "ep')
    with Record(path) as record:
        assert record.lines == [{"kind": "cell"}]
    assert path.read_bytes() == b'{"kind": "cell"}\n'
    path.write_bytes(b'{"kind": "cell"}\nnonsense\n{"kind": "end"}\n')
    with pytest.raises(RecordError, match="line 2"):
        runs(tmp_path)


def test_divergence_is_a_result(tmp_path):
    cell = cell_of("sgd:lr=1e12")
    run_cell(cell, Conditions(tmp_path))
    (run,) = runs(tmp_path)
    assert run.diverged
    assert len(run.epochs) < 4
    assert run.epochs[-1]["train_loss"] is None
    assert "not finite" in run.end["reason"]


def test_a_record_tells_what_it_was_made_with(tmp_path):
    cell = cell_of("scgq:search_prob=0.5", epochs=2)
    run_cell(cell, Conditions(tmp_path, command="cgq compare"))
    (run,) = runs(tmp_path)
    header = run.header
    assert header["settings"]["search_prob"] == 0.5
    assert header["seed"] == 0
    assert header["command"] == "cgq compare"
    assert header["versions"]["torch"] == str(torch.__version__)
    assert header["parameters"] == 6 * 16 + 16 + 32 + 16 * 3 + 3
    assert header["batches"] == 8
    row = run.epochs[-1]
    assert 0 < row["searches"] < 8
    assert 1 < row["passes"] <= 1 + 4 * row["searches"] / 8  # at most 1 + max_fits to a search
    assert 0 <= row["momentum"] <= 0.8
    assert 0 < row["step_size"] <= 0.3
    assert [line["epoch"] for line in run.times] == [1, 2]
    assert times_of(record_path(cell, tmp_path)).exists()


def test_the_average_is_the_anytime_average_with_its_own_batch_norm(tmp_path):
    cell = cell_of("sgd", epochs=2)
    run_cell(cell, Conditions(tmp_path))
    (run,) = runs(tmp_path)
    task = task_of(cell)
    feed = Feed(task, CPU, cell.batch_size, cell.seed)
    # The slow, obvious twin: keep every iterate, average with the weights of the formula.
    from cgqbench.tasks.seeds import seed_everything

    learner = Learner(cell, task, feed, Arithmetic(CPU))
    mean, t = None, 0
    for epoch in (1, 2):
        seed_everything(derived(cell.seed, "noise", epoch))
        for inputs, targets in feed.epoch(epoch):
            learner.optimizer.zero_grad()
            task.loss(learner.model(inputs), targets).backward()
            learner.optimizer.step()
            now = [p.detach().double() for p in learner.model.parameters()]
            t += 1
            weight = 9 / (t + 8)
            mean = (
                now
                if mean is None
                else [m + weight * (n - m) for m, n in zip(mean, now, strict=True)]
            )
    for parameter, value in zip(learner.model.parameters(), mean, strict=True):
        parameter.data.copy_(value)
    norm = learner.model[1]
    norm.reset_running_stats()
    norm.momentum = None
    with torch.no_grad():
        for inputs, _ in feed.sample(30, 2):
            learner.model(inputs)
    loss, _ = on_test_data(learner.model, task, feed)
    assert run.epochs[-1]["average_test_loss"] == pytest.approx(loss, rel=1e-4)
    assert run.epochs[-1]["average_test_loss"] != run.epochs[-1]["test_loss"]


def test_without_averaging_the_record_says_so(tmp_path):
    run_cell(cell_of("sgd", epochs=1, average=False), Conditions(tmp_path))
    (run,) = runs(tmp_path)
    assert run.epochs[0]["average_test_accuracy"] is None
    assert run.epochs[0]["test_accuracy"] is not None


def test_a_record_that_does_not_name_its_arithmetic_is_of_its_time(tmp_path):
    path = tmp_path / "old.jsonl"
    assert refuse_differences(path, {"device": "cpu"}, {"arithmetic": "float32"}) is None
    with pytest.raises(RecordError, match="arithmetic None, not 'tf32'"):
        refuse_differences(path, {"device": "cuda"}, {"arithmetic": "tf32"})


def test_a_record_names_the_choice_of_kernels_and_is_continued_with_no_other(tmp_path, monkeypatch):
    def tell(news):
        if isinstance(news, dict):
            raise Killed

    cell = cell_of("sgd", epochs=2)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Arithmetic, "kernels", {"kernels": "others"})
        run_cell(cell, Conditions(tmp_path), tell)
    (run,) = runs(tmp_path)
    assert run.header["kernels"] == "others"
    assert Arithmetic(CPU).kernels == {}
    monkeypatch.setattr(Arithmetic, "kernels", Arithmetic(torch.device("cuda")).kernels)
    with pytest.raises(RecordError, match=r"kernels 'others', not .*rule B.*Remove .*jsonl.*--out"):
        run_cell(cell, Conditions(tmp_path, resume=True))


ASKED = """
import os, torch
from cgqbench.training.arithmetic import Arithmetic
for fast in (False, True):
    arithmetic = Arithmetic(torch.device("cuda"), fast)
    arithmetic.set_up(1)
    print(os.environ["TORCH_CUDNN_USE_HEURISTIC_MODE_B"], arithmetic.kernels["kernels"])
"""


def test_torch_is_asked_for_the_kernels_that_a_record_names():
    """In a process of its own, whose settings of torch are nobody else's."""
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 cuDNN's rule B", "0 cuDNN's rule A"]


def test_a_finished_record_of_another_arithmetic_is_refused(tmp_path):
    cell = cell_of("sgd", epochs=1)
    run_cell(cell, Conditions(tmp_path))
    path = record_path(cell, tmp_path)
    path.write_text(path.read_text().replace('"arithmetic": "float32"', '"arithmetic": "bf16"'))
    with pytest.raises(RecordError, match="arithmetic 'bf16', not 'float32'"):
        run_cell(cell, Conditions(tmp_path))
