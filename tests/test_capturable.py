"""What a captured graph would repeat wrongly is refused; sharing a GPU starts and ends cleanly."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cgqbench.tasks.task import TaskError
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.capturable import only_what_a_graph_repeats
from cgqbench.training.engines.shared_gpu import CONTROL, PIPE, shared_gpu


class Layer(nn.Module):
    def __init__(self, change: Any) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self, x)


def replaced(layer: Any, x: Tensor) -> Tensor:
    layer.mean = 0.9 * layer.mean + x.mean(0)
    return x - layer.mean


def written(layer: Any, x: Tensor) -> Tensor:
    layer.mean.mul_(0.9).add_(x.mean(0))
    return x - layer.mean


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (replaced, r"replaces a buffer.*copy_"),
        (lambda layer, x: x.mul_(2), "changes its inputs in place"),
        (lambda layer, x: x * random.random(), r"on the host \(python\)"),
        (lambda layer, x: x * torch.rand(()), r"on the host \(torch\)"),
    ],
)
def test_it_is_refused(change: Any, words: str) -> None:
    layer, x = Layer(change), torch.ones(2, 3)
    with pytest.raises(TaskError, match=words), only_what_a_graph_repeats(layer, [x]):
        layer(x)


def test_a_buffer_may_be_written() -> None:
    layer, x = Layer(written), torch.ones(2, 3)
    with only_what_a_graph_repeats(layer, [x]):
        layer(x)
    assert torch.equal(layer.mean, torch.ones(3))


def control(folder: Path, script: str) -> None:
    path = folder / CONTROL
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)


def test_the_service_runs_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "said"
    control(tmp_path, f'if [ "$1" = -d ]; then echo started >> {said}; else cat >> {said}; fi\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with shared_gpu() as environment:
        assert Path(environment[PIPE]).is_dir()
        assert said.read_text() == "started\n"
    assert said.read_text() == "started\nquit\n"
    assert not Path(environment[PIPE]).exists()


@pytest.mark.parametrize("script", [None, "exit 1\n"])
def test_without_the_service_one_is_told(
    script: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script:
        control(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path) + (":/usr/bin:/bin" if script else ""))
    with pytest.warns(UserWarning, match="take turns"), shared_gpu() as environment:
        assert environment == {}


def test_a_service_that_runs_already_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PIPE, "somewhere")
    with shared_gpu() as environment:
        assert environment == {}


def test_fast_is_for_gpus() -> None:
    assert Arithmetic(torch.device("cpu")).name == "float32"
    assert Arithmetic(torch.device("cuda"), fast=True).name == "bf16"
    with pytest.raises(ValueError, match="--fast is for CUDA"):
        Arithmetic(torch.device("cpu"), fast=True)


def test_a_run_takes_denormals_as_zero() -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor has no such mode")
    smallest = torch.tensor([torch.finfo(torch.float32).tiny])
    assert (smallest / 2).count_nonzero() == 1
    Arithmetic(torch.device("cpu")).set_up(1)
    assert (smallest / 2).count_nonzero() == 0


TWO_THREADS = """
import sys, torch
from pathlib import Path
from cgqbench.experiments.cell import Cell
from cgqbench.training import runner

def train_epoch(learner, epoch, tell):
    half = torch.full((4_000_000,), torch.finfo(torch.float32).tiny) / 2
    print(half.view(torch.int32).count_nonzero().item())
    raise SystemExit

runner.train_epoch = train_epoch
cell = Cell("test", "large", "task", "sgd", 0, 1, 32, task=sys.argv[1])
runner.run_cell(cell, runner.Conditions(Path(sys.argv[2]), threads=2))
"""
LARGE = """
from small_task import data as small, model
import torch

def data():
    torch.ones(4_000_000) / 2
    return small()
"""


def test_so_do_all_threads_of_a_run_whose_data_is_computed(tmp_path: Path) -> None:
    """In a process of its own: threads keep the mode in which they were begun."""
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor has no such mode")
    task = tmp_path / "task.py"
    here = str(Path(__file__).parent)
    task.write_text(f"import sys\nsys.path.insert(0, {here!r})\n{LARGE}")
    words = [sys.executable, "-c", TWO_THREADS, str(task), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "0\n", done.stderr
