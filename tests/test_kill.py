"""Kill -9 at random moments, and resume: the records are those of a run in one go."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cgqbench.records.reading import runs

TASK = str(Path(__file__).with_name("slow_task.py"))
KILLS = 10
EPOCHS = 24
"""A killed run gets at most two further: one before it waits, one before a cell notices."""


def command(out: Path, *words: str) -> list[str]:
    methods = ["-m", "scgq", "-m", "adam"]
    more = ["--epochs", str(EPOCHS), "--jobs", "2", "--out", str(out), *words]

    return [sys.executable, "-m", "cgqbench", "compare", "--task", TASK, *methods, *more]


def contents(out: Path) -> dict[str, bytes]:
    return {run.path.name: run.path.read_bytes() for run in runs(out)}


def sizes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*.jsonl")}


def killed_at_random(out: Path, draw: random.Random) -> None:
    """Resume a run and kill it, alive: after so many batches it waits for that (slow_task.py)."""
    hold = out.with_name("hold")
    hold.touch()
    before = sizes(out)
    process = subprocess.Popen(
        command(out, "--resume"),
        env={**os.environ, "HOLD": str(hold)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    hung = time.monotonic() + 300.0
    while sizes(out) == before and process.poll() is None and time.monotonic() < hung:
        time.sleep(0.01)
    time.sleep(draw.uniform(0.0, 0.4))
    if process.poll() is not None:
        pytest.fail(f"it ended by itself: {process.communicate()[0].decode()}")
    # Once the command alone, whose cells must notice; once all of it together.
    if draw.random() < 0.5:
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    hold.unlink()
    process.communicate()  # until the last of its cells, which write to the same pipe, is gone


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill -9")
def test_killed_ten_times_and_resumed_the_records_are_the_same(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole), check=True, capture_output=True)
    draw = random.Random(7)
    for _ in range(KILLS):
        killed_at_random(broken, draw)
    last = subprocess.run(command(broken, "--resume"), capture_output=True, text=True)
    assert last.returncode == 0, last.stdout + last.stderr
    assert contents(broken) == contents(whole)
    assert len(contents(whole)) == 2
