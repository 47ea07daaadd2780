"""Cells on a Ray cluster: the same records as in local processes."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from cgqbench.records.reading import runs
from cgqbench.records.record import Record

STOPPED = """
import sys
from pathlib import Path
from cgqbench.experiments.cell import Cell
from cgqbench.training.engines.ray_cluster import ray_cluster
from cgqbench.training.runner import Conditions

cell = Cell("test", "small", "task", "adam", 0, 2000, 32, task=sys.argv[1])
events = ray_cluster([cell], Conditions(Path(sys.argv[2])), 1)
for event in events:
    if isinstance(event.news, dict) and event.news["epoch"] >= 5:
        events.close()  # as Ctrl-C does
"""
TASK = str(Path(__file__).with_name("small_task.py"))


def check_told(*words: str) -> str:
    command = [sys.executable, "-m", "cgqbench", "compare", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def check_compared(out: Path, *words: str) -> dict[str, bytes]:
    methods = "--task", TASK, "--epochs", "2", "-m", "sgd", "-m", "scgq"
    check_told(*methods, "--out", str(out), *words)
    return {run.path.name: b"\n".join(run.path.read_bytes().splitlines()[1:]) for run in runs(out)}


@pytest.mark.skipif(find_spec("ray") is None, reason='Ray is not installed: pip install "cgq[ray]"')
def test_ray_leaves_the_records_of_local_processes(tmp_path):
    here = check_compared(tmp_path / "here")
    there = check_compared(tmp_path / "there", "--engine", "ray")
    assert len(here) == 2
    assert here == there


@pytest.mark.skipif(find_spec("ray") is None, reason='Ray is not installed: pip install "cgq[ray]"')
def test_ray_too_says_why_a_run_ended(tmp_path):
    task = str(Path(TASK).with_name("rectified_task.py"))
    dies = "--task", task, "--epochs", "60", "-m", "sgd:lr=300.0,momentum=0.0"
    told = check_told(*dies, "--out", str(tmp_path), "--engine", "ray")
    assert told.count(" ended: the network was dead from epoch ") == 1


@pytest.mark.skipif(find_spec("ray") is None, reason='Ray is not installed: pip install "cgq[ray]"')
def test_cells_that_are_told_to_stop_keep_their_last_epoch(tmp_path):
    """In a process of its own, which Ray's threads and warnings do not outlive."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, TASK, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    with Record(next(tmp_path.rglob("*-0.jsonl"))) as record:
        assert 5 <= record.epochs < 2000
        saved = record.checkpoint.load(torch.device("cpu"))["row"]["epoch"]
        assert saved - record.epochs in (0, 1)


def test_without_ray_the_cure_is_named(tmp_path, monkeypatch):
    from cgqbench.training.engines import ENGINES
    from cgqbench.training.runner import Conditions

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'pip install "cgq\[ray\]"'):
        list(ENGINES["ray"]([], Conditions(tmp_path), 1))
