"""Cells on a Ray cluster: the same records as in local processes."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cgqbench.records.reading import runs

TASK = str(Path(__file__).with_name("small_task.py"))


def check_compared(out: Path, *words: str) -> dict[str, bytes]:
    command = [sys.executable, "-m", "cgqbench", "compare", "--task", TASK, "--epochs", "2"]
    methods = ["-m", "sgd", "-m", "scgq"]
    done = subprocess.run(
        [*command, *methods, "--out", str(out), *words], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {run.path.name: b"\n".join(run.path.read_bytes().splitlines()[1:]) for run in runs(out)}


@pytest.mark.skipif(find_spec("ray") is None, reason='Ray is not installed: pip install "cgq[ray]"')
def test_ray_leaves_the_records_of_local_processes(tmp_path):
    here = check_compared(tmp_path / "here")
    there = check_compared(tmp_path / "there", "--engine", "ray")
    assert len(here) == 2
    assert here == there


def test_without_ray_the_cure_is_named(tmp_path, monkeypatch):
    from cgqbench.training.engines import ENGINES
    from cgqbench.training.runner import Conditions

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'pip install "cgq\[ray\]"'):
        list(ENGINES["ray"]([], Conditions(tmp_path), 1))
