"""The source of Python's standard library as a text to train on."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest
import torch

from cgqbench.tasks.data import MissingData, standard_library
from cgqbench.tasks.data.stdlib import for_testing, sources
from cgqbench.tasks.data.text import LENGTH, VOCABULARY, Text, tokens_of
from cgqbench.tasks.named import by_name
from cgqbench.training.feed import Feed

LIBRARY = Path(sysconfig.get_path("stdlib"))


def test_the_text_is_the_same_each_time_and_knows_itself() -> None:
    first, second = standard_library(), standard_library()
    assert torch.equal(first.train, second.train)
    assert torch.equal(first.test, second.test)
    assert first.checksum == second.checksum
    assert len(first.train) > 100_000
    assert len(first.test) == 1000
    other = Text.of(b"x" * 1000, b"y" * 1000, 5)
    assert Text.of(b"x" * 1000, b"y" * 999 + b"z", 5).checksum != other.checksum


def test_files_are_for_training_or_for_testing() -> None:
    names = sources(LIBRARY)
    tests = [name for name in names if for_testing(name)]
    assert names == sorted(set(names))
    assert 0.05 < len(tests) / len(names) < 0.2
    assert {"heapq.py", "json/encoder.py"} <= set(names)
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert not folders & {"site-packages", "test", "tests", "idlelib", "encodings", "__pycache__"}


def test_what_an_installation_adds_makes_no_difference(tmp_path: Path) -> None:
    for name in sources(LIBRARY)[::4]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(LIBRARY / name, tmp_path / name)
    plain = standard_library(tmp_path)
    for name in (
        *("site-packages/torch.py", "config-3.11-x86_64/made.py", "json/tests/a.py"),
        *("_sysconfigdata__darwin.py", "sitecustomize.py", "__pycache__/a.py", "notes.txt"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("print('here')\n" * 100)
    for name in sources(tmp_path):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
    assert standard_library(tmp_path).checksum == plain.checksum
    (tmp_path / "more.py").write_text("print('here')\n" * 100)
    assert standard_library(tmp_path).checksum != plain.checksum


def test_a_library_without_source_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"too few source files.*installation of Python"):
        standard_library(tmp_path)


def test_a_target_is_the_character_after_its_input() -> None:
    found = by_name("stdlib", "gpt1m")
    for inputs, targets in (found.train, found.test):
        assert inputs.shape == targets.shape == (len(inputs), LENGTH)
        assert torch.equal(inputs[::500, 1:], targets[::500, :-1])
        assert int(inputs.max()) < VOCABULARY
    names = [name for name in sources(LIBRARY) if not for_testing(name)]
    text = tokens_of((LIBRARY / names[0]).read_bytes())
    assert torch.equal(found.train[0][3], text[96 : 96 + LENGTH])
    assert torch.equal(found.train[1][3], text[97 : 97 + LENGTH])


def test_no_window_is_tested_and_trained_on() -> None:
    text = Text.of(bytes(range(32, 127)) * 20, b"\n" * 1000, 5)
    assert text.test.shape == (5, LENGTH + 1)
    assert not (text.train == tokens_of(b"\n")).any()
    assert (text.test == tokens_of(b"\n")).all()


def test_an_epoch_draws_some_windows_and_none_twice() -> None:
    found = by_name("stdlib", "gpt1m")
    feed = Feed(found, torch.device("cpu"), 32, seed=0)
    assert len(feed) == 250
    batches = list(feed.epoch(1))
    assert [len(inputs) for inputs, _ in batches] == [32] * 250
    assert batches[0][0].dtype == torch.int64
    again, next_epoch = list(feed.epoch(1)), list(feed.epoch(2))
    assert torch.equal(batches[7][0], again[7][0])
    assert not torch.equal(batches[7][0], next_epoch[7][0])
