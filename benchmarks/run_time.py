"""Seconds an epoch by method, the paper's figure 2, from a part of an epoch.

For networks of which whole epochs take too long: `cgq reproduce figure2` trains them. Here the
methods take turns, so that a machine that becomes slower does so for all, and a round is as many
batches of the real data as `--batches` says; the first is not counted. A method's number is the
middle of its rounds, with the least and the most ratio to SGD in the same round. Searches are those
of the start of training, where most batches have one fit and no second.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import torch
from floor import wait
from rich.console import Console
from rich.table import Table
from where import measured_on

from cgqbench.experiments import EXPERIMENTS
from cgqbench.experiments.cell import Cell, task_of
from cgqbench.methods import chosen
from cgqbench.tasks.task import Task
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.epoch import train_epoch
from cgqbench.training.feed import Feed
from cgqbench.training.learner import Learner

FIGURE = EXPERIMENTS["figure2"]
NETWORKS = {column.network: column for column in FIGURE.columns}


class Timed:
    """A method that is trained by the round."""

    def __init__(self, cell: Cell, task: Task, arithmetic: Arithmetic) -> None:
        feed = Feed(task, arithmetic.device, cell.batch_size, cell.seed)
        graphs = arithmetic.device.type == "cuda"
        self.label = chosen(cell.method, cell.network).label
        self._learner = Learner(cell, task, feed, arithmetic, graphs=graphs)
        self.seconds: list[float] = []
        self.passes: list[float] = []

    def round(self) -> None:
        """Train for one, with the average that every run keeps."""
        device = self._learner.arithmetic.device
        wait(device)
        began = time.perf_counter()
        row = train_epoch(self._learner, 1 + len(self.seconds), lambda progress: None)
        wait(device)
        self.seconds.append((time.perf_counter() - began) / len(self._learner.feed))
        self.passes.append(row["passes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="resnet164")
    parser.add_argument("--batches", type=int, default=20, help="of a round")
    parser.add_argument("--rounds", type=int, default=4, help="the first is not counted")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    if asked.rounds < 2 or asked.batches < 1:
        parser.error("There is nothing to time. Give 2 or more rounds, and 1 or more batches.")
    column = NETWORKS[asked.network]
    cells = [
        Cell(FIGURE.name, column.dataset, column.network, method, 0, 1, column.batch_size)
        for method in FIGURE.methods
    ]
    whole = task_of(cells[0])
    batches = -(-len(whole.train[0]) // column.batch_size)
    task = replace(whole, epoch_size=asked.batches * column.batch_size)
    arithmetic = Arithmetic(torch.device(asked.device))
    arithmetic.set_up(asked.threads)
    notes, console = Console(stderr=True), Console(width=110)
    runs = [Timed(cell, task, arithmetic) for cell in cells]
    for turn in range(asked.rounds):
        for run in runs:
            run.round()
            notes.print(f"[dim]round {turn}, {run.label}: {run.seconds[-1]:.3f} s a step[/]")
    console.print(f"{measured_on(arithmetic.device)}, {asked.threads} threads", highlight=False)
    console.print(
        f"{column.network} on {column.dataset}, batch {column.batch_size}, {arithmetic.name}; "
        f"seconds an epoch of {batches} batches from {asked.batches}, the middle of "
        f"{asked.rounds - 1} rounds; python benchmarks/run_time.py --network {asked.network} "
        f"--batches {asked.batches} --rounds {asked.rounds} --device {asked.device} "
        f"--threads {asked.threads}",
        highlight=False,
    )
    console.print(table_of(runs, batches))


def table_of(runs: list[Timed], batches: int) -> Table:
    table = Table("method", "s an epoch", "÷ SGD", "least to most", "forward passes a step")
    for column in table.columns[1:]:
        column.justify = "right"
    sgd, *_ = runs
    for run in runs:
        taken = run.seconds[1:]
        ratios = [mine / its for mine, its in zip(taken, sgd.seconds[1:], strict=True)]
        table.add_row(
            run.label,
            f"{batches * statistics.median(taken):.3g}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            f"{statistics.fmean(run.passes[1:]):.2f}",
        )
    return table


if __name__ == "__main__":
    main()
