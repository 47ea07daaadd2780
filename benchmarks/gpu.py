"""Epoch times on a GPU, as `cgq` runs them, data pipeline included: `make bench-gpu`.

Methods take turns within one run; an epoch is 50,000 images of CIFAR-10's shape in batches of 64.
`--runs 3` goes on with them twice, in the same process, and the table has the middle ratio, with
the least and the most; its other numbers are means. The floor of a ratio is the passes alone, which
take no data from the pipeline and change no parameter. Then the unsearched step alone, as in a loop
of your own, on the tensors of a ResNet-50. The last table runs whole cells through the engine, one
at a time and several at once. `--apart` leaves the parameters where torch put them, instead of side
by side in memory; `--only vgg16` and `--tf32` are for a quick look. A process keeps cuDNN's rule of
the arithmetic that it begins with, here TF32's.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from cifar_shapes import SHAPE, images
from floor import FIRST, PROBE, passes_alone, timed
from networks import resnet50_parameters
from rich.console import Console
from rich.table import Table
from trained import Trained, middle
from where import measured_on

import cgq
from cgqbench.experiments.cell import Cell
from cgqbench.records.identity import record_path
from cgqbench.records.reading import read_run
from cgqbench.tasks.data.images import cropped_and_flipped, normalised
from cgqbench.tasks.networks import network
from cgqbench.tasks.task import Task
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.engines import ENGINES, Ended
from cgqbench.training.runner import Conditions

EPOCH = 50_000
BATCH = 64
BATCHES = 150  # of which an epoch's time is extrapolated
ROUNDS = 3
FLOOR_STEPS = 40  # of the passes alone, in each run
METHODS = {"SGD": "sgd", "CGQ": "cgq", "sCGQ": "scgq"}
NETWORKS = ("resnet164", "densenet100", "vgg16")
STEPS = 200  # of the step alone, in each of as many turns
TURNS = 5


class OnGPU(Trained):
    """With the memory it takes, and the floor of its passes."""

    def __init__(self, name: str, method: str, task: Task, arithmetic: Arithmetic) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        cell = Cell("gpu", "images", name, method, 0, 1, BATCH, average=False)
        super().__init__(cell, task, arithmetic)
        self.memory = torch.cuda.max_memory_reserved() - before

    def floor(self, kinds: Sequence[bool]) -> float:
        """Seconds an epoch of these passes alone."""
        alone = passes_alone(self.learner, kinds)
        step, _ = timed(alone, torch.device("cuda", 0), FLOOR_STEPS, turns=1)
        return step * EPOCH / BATCH

    @property
    def seconds(self) -> float:
        """An epoch, by the mean."""
        return statistics.mean(self.times) * EPOCH / BATCH

    @property
    def mean_passes(self) -> float:
        return statistics.mean(self.passes)


def task_for(name: str) -> Task:
    data = images(BATCHES * BATCH, 1)
    return Task(
        partial(network, name, SHAPE, 10),
        data,
        data,
        prepared=partial(normalised, mean=(0.5,) * 3, std=(0.25,) * 3),
        augmented=cropped_and_flipped,
        channels_last=True,
    )


def ratios(times: Sequence[float], of: Sequence[float]) -> list[float]:
    """Of the means of each run."""
    starts = range(0, len(times), ROUNDS)
    return [sum(times[i : i + ROUNDS]) / sum(of[i : i + ROUNDS]) for i in starts]


def epochs_table(
    device: torch.device,
    console: Console,
    networks: Sequence[str],
    kinds: Sequence[bool],
    repeats: int,
) -> Table:
    table = Table(
        "network", "arithmetic", "SGD, s an epoch", "CGQ ÷ SGD", "floor", "passes",
        "sCGQ ÷ SGD", "floor", "passes", "memory, CGQ ÷ SGD", "set-up, s",
    )  # fmt: skip
    for name in networks:
        task = task_for(name)
        for fast in kinds:
            arithmetic = Arithmetic(device, fast)
            arithmetic.set_up(1)
            runs = {}
            for label, method in METHODS.items():
                console.print(f"[dim]{name} {arithmetic.name} {label}[/]")
                runs[label] = OnGPU(name, method, task, arithmetic)
            sgd, cgq_, scgq = runs.values()
            unsearched, searched = [], []
            for turn in range(repeats * ROUNDS):
                for run in runs.values():
                    run.epoch()
                if turn % ROUNDS == 0:
                    unsearched.append(cgq_.floor([FIRST]))
                    searched.append(cgq_.floor([FIRST, PROBE, PROBE]))
            least, most = statistics.median(unsearched), statistics.median(searched)
            share = (scgq.mean_passes - 1) / 2
            row = (
                name,
                arithmetic.name,
                f"{sgd.seconds:.2f}",
                middle(ratios(cgq_.times, sgd.times), 2),
                f"{most / sgd.seconds:.2f}",
                f"{cgq_.mean_passes:.2f}",
                middle(ratios(scgq.times, sgd.times), 3),
                f"{(least + share * (most - least)) / sgd.seconds:.3f}",
                f"{scgq.mean_passes:.2f}",
                f"{cgq_.memory / sgd.memory:.2f}",
                f"{sgd.first_epoch:.0f}",
            )
            console.print(f"[dim]{', '.join(row)}[/]")
            table.add_row(*row)
            del runs, run, sgd, cgq_, scgq
    return table


def step_table(device: torch.device) -> Table:
    """The unsearched step on gradients that are there, eagerly: the middle of some turns."""
    warnings.filterwarnings("ignore", "No step had a closure")  # on purpose
    params = [torch.nn.Parameter(p.detach().to(device)) for p in resnet50_parameters()]
    for param in params:
        param.grad = 0.01 * torch.randn_like(param)
    optimizers: dict[str, torch.optim.Optimizer] = {
        "SGD, foreach": torch.optim.SGD(params, 1e-6, momentum=0.9, foreach=True),
        "SGD, fused": torch.optim.SGD(params, 1e-6, momentum=0.9, fused=True),
        "CGQ": cgq.CGQ(params, lr=1e-6),
    }
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    for _ in range(TURNS + 1):
        for name, optimizer in optimizers.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(STEPS):
                optimizer.step()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - began) / STEPS)
    table = Table("unsearched step, ResNet-50's tensors", "ms", "÷ SGD, foreach")
    middle = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    for name, taken in middle.items():
        table.add_row(name, f"{1e3 * taken:.3f}", f"{taken / middle['SGD, foreach']:.2f}")
    return table


def jobs_table(device: str, console: Console, most: int) -> Table:
    """Epochs an hour of whole cells: training, evaluation, record and checkpoint."""
    table = Table("network", "method", "at a time", "cell-epochs an hour", "÷ one at a time")
    task = Path(__file__).with_name("cifar_shapes.py")
    alone = 0.0
    for jobs in (1, most):
        console.print(f"[dim]resnet110 {jobs} at a time[/]")
        cells = [
            Cell("jobs", "cifar_shapes", "task", "sgd", seed, 3, BATCH, False, str(task))
            for seed in range(jobs)
        ]
        with tempfile.TemporaryDirectory() as folder:
            conditions = Conditions(Path(folder), device)
            for event in ENGINES["local"](cells, conditions, jobs):
                if isinstance(event.news, Ended) and event.news.error:
                    raise RuntimeError(event.news.error)
            records = [read_run(record_path(cell, conditions.records)) for cell in cells]
        times = [
            line["train_seconds"] + line["evaluation_seconds"]
            for record in records
            if record
            for line in record.times[1:]  # the first captures
        ]
        rate = 3600 * jobs / statistics.mean(times) * int(os.environ["CGQ_IMAGES"]) / EPOCH
        alone = alone or rate
        row = "resnet110", "sgd", str(jobs), f"{rate:.0f}", f"{rate / alone:.2f}"
        console.print(f"[dim]{', '.join(row)}[/]")
        table.add_row(*row)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Epoch times on a GPU.")
    parser.add_argument("--apart", action="store_true", help="parameters where torch put them")
    parser.add_argument("--only", nargs="+", choices=NETWORKS, help="these networks, no cells")
    parser.add_argument("--tf32", action="store_true", help="not in bf16")
    parser.add_argument("--runs", type=int, choices=(1, 3, 5), default=1, help="in one process")
    asked = parser.parse_args()
    apart = asked.apart
    if not torch.cuda.is_available():
        sys.exit("There is no CUDA device here.")
    if apart:
        mock.patch("cgqbench.training.arithmetic.join", return_value=None).start()
    os.environ["CGQ_NETWORK"], os.environ["CGQ_IMAGES"] = "resnet110", "12800"
    notes, console = Console(stderr=True), Console(width=130)
    device = torch.device("cuda", 0)
    kinds = (False,) if asked.tf32 else (False, True)
    networks = asked.only or NETWORKS
    parts = [epochs_table(device, notes, networks, kinds, asked.runs), step_table(device)]
    if not asked.only:
        parts.append(jobs_table("cuda", notes, 6))
    console.print(measured_on(device), highlight=False)
    console.print(
        f"batch {BATCH}; SGD with momentum; epochs of {EPOCH:,} images from {BATCHES} batches, "
        f"mean of {ROUNDS}; runs: {asked.runs}; passes: forward passes a step; parameters "
        f"{'apart' if apart else 'side by side'}",
        highlight=False,
    )
    for table in parts:
        console.print(table)


if __name__ == "__main__":
    main()
