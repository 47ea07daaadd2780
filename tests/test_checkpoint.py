"""Checkpoints in parts: small files, the same bits, and never half of one."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from small_task import model
from test_runner import Killed, bytes_after, cell_of

from cgqbench.records import checkpoint as module
from cgqbench.records.checkpoint import Checkpoint, CheckpointError
from cgqbench.records.identity import record_path
from cgqbench.records.record import Record, RecordError
from cgqbench.training.runner import Conditions, run_cell

CPU = torch.device("cpu")
LIMIT = 1000
CALLS = 10


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(module, "LIMIT", LIMIT)


def made(number: float) -> dict[str, object]:
    """Some kilobytes that differ from one number to the next."""
    values = torch.full((1000,), number)
    return {"number": number, "values": values, "view": values[10:20]}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_no_file_is_larger_than_the_limit_and_the_bits_are_the_same(tmp_path, small_parts):
    checkpoint = Checkpoint(tmp_path / "cell.ckpt")
    checkpoint.save(made(torch.pi), 1)
    sizes = [path.stat().st_size for path in tmp_path.glob("cell.ckpt.*")]
    assert len(sizes) >= 5
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= LIMIT
    assert sum(size == LIMIT for size in sizes) == len(sizes) - 1, "only the last has room"
    found = checkpoint.load(CPU)
    assert found["number"] == torch.pi
    assert torch.equal(found["values"], made(torch.pi)["values"])
    assert found["view"].untyped_storage().data_ptr() == found["values"].data_ptr()


def test_one_wrong_bit_in_a_number_is_noticed(tmp_path):
    checkpoint = Checkpoint(tmp_path / "cell.ckpt")
    checkpoint.save(made(torch.pi), 1)
    assert files(tmp_path) == ["cell.ckpt", "cell.ckpt.1-001"]
    part = tmp_path / "cell.ckpt.1-001"
    content = bytearray(part.read_bytes())
    content[content.index(made(torch.pi)["values"].numpy().tobytes()) + 40] ^= 1
    part.write_bytes(content)
    wrong = torch.load(part, weights_only=True)["values"]  # torch itself takes no notice
    assert not torch.equal(wrong, made(torch.pi)["values"])
    with pytest.raises(CheckpointError, match="not the one that was written"):
        checkpoint.load(CPU)


@pytest.mark.parametrize("found", [b"", b"{", b"PK\x03\x04 of torch", b'{"set": 1e999}'])
def test_what_is_no_checkpoint_is_not_loaded_and_makes_room_for_one(found, tmp_path):
    checkpoint = Checkpoint(tmp_path / "cell.ckpt")
    checkpoint.path.write_bytes(found)
    with pytest.raises(CheckpointError, match="no index"):
        checkpoint.load(CPU)
    checkpoint.save(made(1.0), 1)
    assert checkpoint.load(CPU)["number"] == 1.0


def test_the_set_before_goes_when_the_new_one_is_whole(tmp_path, small_parts, monkeypatch):
    checkpoint = Checkpoint(tmp_path / "cell.ckpt")
    checkpoint.save(made(1.0), 1)
    first = files(tmp_path)
    checkpoint.save(made(2.0), 1)
    assert checkpoint.load(CPU)["number"] == 2.0
    assert len(files(tmp_path)) == len(first)
    assert set(files(tmp_path)) & set(first) == {"cell.ckpt"}
    monkeypatch.setattr(module, "LIMIT", 2**20)
    checkpoint.save(made(3.0), 1)
    assert files(tmp_path) == ["cell.ckpt", "cell.ckpt.3-001"], "it has become small"
    assert checkpoint.load(CPU)["number"] == 3.0


def test_removed_it_leaves_nothing_of_its_own_and_all_of_others(tmp_path, small_parts):
    checkpoint = Checkpoint(tmp_path / "cell-1.ckpt")
    checkpoint.save(made(1.0), 1)
    other = Checkpoint(tmp_path / "cell-11.ckpt")
    other.save(made(2.0), 1)
    checkpoint.remove()
    assert not checkpoint.exists()
    assert not any(name.startswith("cell-1.") for name in files(tmp_path))
    assert other.load(CPU)["number"] == 2.0
    checkpoint.remove()  # once more does no harm


def interrupted(call: int, patch: pytest.MonkeyPatch) -> None:
    """Let the process be gone before its n-th file is settled or takes its place."""
    calls = itertools.count()

    def dying(function):
        def wrapped(*arguments):
            if next(calls) >= call:
                raise Killed
            return function(*arguments)

        return wrapped

    patch.setattr(module.os, "fsync", dying(module.os.fsync))
    patch.setattr(module.os, "replace", dying(module.os.replace))


@pytest.mark.parametrize("call", range(CALLS))
def test_a_set_that_is_half_written_is_never_loaded(call, tmp_path, small_parts, monkeypatch):
    checkpoint = Checkpoint(tmp_path / "cell.ckpt")
    checkpoint.save(made(1.0), 1)
    parts = len(files(tmp_path)) - 1
    died = False
    with monkeypatch.context() as patch:
        interrupted(call, patch)
        try:
            checkpoint.save(made(2.0), 1)
        except Killed:
            died = True
    # Each part and the index are settled, then the index takes its place.
    assert died == (call < parts + 2)
    assert parts + 2 < CALLS, "the last of them comes too late"
    assert checkpoint.load(CPU)["number"] == (1.0 if died else 2.0)
    removed = tmp_path / "removed"
    shutil.copytree(tmp_path, removed)
    Checkpoint(removed / "cell.ckpt").remove()
    assert files(removed) == []
    shutil.rmtree(removed)
    checkpoint.save(made(3.0), 1)
    assert checkpoint.load(CPU)["number"] == 3.0
    assert len(files(tmp_path)) == parts + 1, "what was left of the torn set is gone"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, OSError])
@pytest.mark.parametrize("call", range(1, 12, 2))
def test_an_interrupted_write_is_an_interrupt(interrupt, call, tmp_path, monkeypatch):
    """And no complaint of torch's about the place in its file."""
    checkpoint = Checkpoint(tmp_path / "cell.ckpt")
    checkpoint.save(made(1.0), 1)
    write, calls = module._Parts.write, itertools.count()

    def interrupted(parts, data):
        if next(calls) == call:
            raise interrupt
        return write(parts, data)

    with monkeypatch.context() as patch, pytest.raises(interrupt):
        patch.setattr(module._Parts, "write", interrupted)
        checkpoint.save(made(2.0), 1)
    assert checkpoint.load(CPU)["number"] == 1.0


def of_another_set(folder: Path) -> None:
    Checkpoint(folder / "other.ckpt").save(made(2.0), 1)
    (folder / "other.ckpt.1-003").replace(folder / "cell.ckpt.1-003")


def without_the_last(folder: Path) -> None:
    max(folder.glob("cell.ckpt.*")).unlink()


def shortened(folder: Path) -> None:
    path = folder / "cell.ckpt.1-002"
    path.write_bytes(path.read_bytes()[:-1])


def exchanged(folder: Path) -> None:
    first, second = folder / "cell.ckpt.1-001", folder / "cell.ckpt.1-002"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


@pytest.mark.parametrize("harm", [of_another_set, without_the_last, shortened, exchanged])
def test_parts_that_do_not_belong_together_are_refused(harm, tmp_path, small_parts):
    checkpoint = Checkpoint(tmp_path / "cell.ckpt")
    checkpoint.save(made(1.0), 1)
    harm(tmp_path)
    with pytest.raises(CheckpointError, match="missing, or not the one"):
        checkpoint.load(CPU)


@pytest.mark.parametrize("index", ["{", '{"set": 1}', '{"set": "../x", "parts": []}', "{}"])
def test_an_index_that_is_none_is_refused(index, tmp_path):
    path = tmp_path / "cell.ckpt"
    path.write_text(index)
    with pytest.raises(CheckpointError, match="no index"):
        Checkpoint(path).load(CPU)


def stopped(cell, folder: Path, epoch: int) -> None:
    def tell(news):
        if isinstance(news, dict) and news["epoch"] == epoch:
            raise Killed

    with pytest.raises(Killed):
        run_cell(cell, Conditions(folder, resume=True), tell)


@pytest.mark.parametrize("method", ["sgd", "scgq", "cocob", "search"])
def test_a_run_goes_on_from_parts_as_if_never_interrupted(method, tmp_path, small_parts):
    cell = cell_of(method)
    whole = bytes_after(cell, tmp_path / "whole")
    folder = tmp_path / "resumed"
    for epoch in (1, 3):
        stopped(cell, folder, epoch)
        path = record_path(cell, folder)
        index = json.loads(path.with_suffix(".ckpt").read_text())
        assert len(list(path.parent.glob("*.ckpt.*"))) == len(index["parts"]) > 1
    run_cell(cell, Conditions(folder, resume=True))
    assert path.read_bytes() == whole
    assert list(path.parent.glob("*.ckpt*")) == []


def test_a_run_whose_part_is_lost_names_the_cure(tmp_path, small_parts):
    cell = cell_of("sgd")
    stopped(cell, tmp_path, 2)
    next(record_path(cell, tmp_path).parent.glob("*.ckpt.*")).unlink()
    with pytest.raises(RecordError, match=r"no whole checkpoint.*Remove .*jsonl"):
        run_cell(cell, Conditions(tmp_path, resume=True))
    with Record(record_path(cell, tmp_path)) as record:
        record.restart()
    assert list(record_path(cell, tmp_path).parent.glob("*.ckpt*")) == []


def test_a_checkpoint_holds_each_number_once(tmp_path):
    """What is left out would change the run; what is there twice would be waste."""
    cell = cell_of("scgq")
    stopped(cell, tmp_path, 1)
    saved = Checkpoint(record_path(cell, tmp_path).with_suffix(".ckpt")).load(CPU)["learner"]
    parameters = sum(parameter.numel() for parameter in model().parameters())
    state = saved["optimizer"]["state"].values()
    kept = sum(value.numel() for each in state for value in each.values())
    assert kept == 2 * parameters, "the direction and the residual"
    tensors = [*saved["model"].values(), *saved["averaged"].values()]
    for tensor in tensors:
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
