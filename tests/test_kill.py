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


def command(out: Path, *words: str) -> list[str]:
    methods = ["-m", "scgq", "-m", "adam"]
    more = ["--epochs", "12", "--jobs", "2", "--out", str(out), *words]

    return [sys.executable, "-m", "cgqbench", "compare", "--task", TASK, *methods, *more]


def contents(out: Path) -> dict[str, bytes]:
    # The command is what was typed; --out is all that differs.
    return {
        run.path.name: run.path.read_bytes().replace(str(out).encode(), b"OUT") for run in runs(out)
    }


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill -9")
def test_killed_ten_times_and_resumed_the_records_are_the_same(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "killed"
    began = time.monotonic()
    subprocess.run(command(whole), check=True, capture_output=True)
    length = time.monotonic() - began
    draw = random.Random(7)
    survived = 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            command(broken, "--resume"), stdout=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(draw.uniform(0.3, 0.5) * length)
        survived += process.poll() is not None
        # Once the command alone, whose cells must notice; once all of it together.
        if draw.random() < 0.5:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(0.5)
    last = subprocess.run(command(broken, "--resume"), capture_output=True, text=True)
    assert last.returncode == 0, last.stdout + last.stderr
    assert contents(broken) == contents(whole)
    assert len(contents(whole)) == 2
    assert survived < KILLS // 2, "the kills came too late to prove anything"
