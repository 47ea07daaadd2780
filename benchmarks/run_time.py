"""Seconds an epoch by method, the paper's figure 2, from a part of an epoch.

For networks of which whole epochs take too long: `cgq reproduce figure2` trains them. Here the
methods take turns, so that a machine that becomes slower does so for all; a round is as many
batches of the real data as `--batches` says, and the first is not counted. The searches of sCGQ,
which a coin decides, come evenly here: among a few batches chance would have too large a say. They
are those of the start of training, where few batches have a second fit. Every number is the middle
of its rounds, with the least and the most, a ratio that of the same round. With `--plot` it is
drawn too.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from trained import Trained, middle
from where import measured_on

from cgqbench.analysis.comparison import several
from cgqbench.analysis.costs import Cost, three_digits
from cgqbench.experiments import EXPERIMENTS, paper
from cgqbench.experiments.cell import Cell, task_of
from cgqbench.methods import chosen
from cgqbench.output.figures.run_time import seconds_by_method
from cgqbench.output.palette import styles
from cgqbench.records.problem import TITLES
from cgqbench.training.arithmetic import Arithmetic

FIGURE = EXPERIMENTS["figure2"]
METHODS = [method for method in FIGURE.methods if method not in paper.BESIDE]
"""The paper's. Of the others a schedule costs nothing; LineSearch begins by searching all."""
NETWORKS = {column.network: column for column in FIGURE.columns}


def evenly(seed: int, step: int, probability: float) -> bool:
    """Whether a step is searched: of ten the tenth, at a probability of a tenth."""
    return int((step + 1) * probability) > int(step * probability)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="resnet164")
    parser.add_argument("--batches", type=int, default=10, help="of a round; a multiple of 10")
    parser.add_argument("--rounds", type=int, default=8, help="the first is not counted")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--plot", type=Path, help="where to draw it, a PNG file")
    asked = parser.parse_args()
    if asked.rounds < 2 or asked.batches < 1 or asked.batches % 10:
        parser.error("Give 2 or more rounds, and 10, 20, 30 … batches: sCGQ searches a tenth.")
    mock.patch("cgq.engine.optimizer.coin", evenly).start()
    column = NETWORKS[asked.network]
    cells = [
        Cell(FIGURE.name, column.dataset, column.network, method, 0, 1, column.batch_size)
        for method in METHODS
    ]
    arithmetic = Arithmetic(torch.device(asked.device))
    arithmetic.set_up(asked.threads)
    task = task_of(cells[0])
    batches = -(-len(task.train[0]) // column.batch_size)
    notes, console = Console(stderr=True), Console(width=110)
    runs: dict[str, Trained] = {}
    for cell in cells:
        runs[cell.method] = run = Trained(cell, task, arithmetic, asked.batches)
        notes.print(f"[dim]first round, {label(run)}: {run.first_epoch:.1f} s[/]")
    for turn in range(1, asked.rounds):
        for run in runs.values():
            run.epoch()
            notes.print(f"[dim]round {turn}, {label(run)}: {run.times[-1]:.3f} s a step[/]")
    where = f"{measured_on(arithmetic.device)}, {several(asked.threads, 'thread')}"
    rounds = f"the middle of {asked.rounds - 1} rounds, as of the ratios in them"
    how = f"an epoch of {batches} batches from {asked.batches}, {rounds}"
    console.print(where, highlight=False)
    console.print(
        f"{column.network} on {column.dataset}, batch {column.batch_size}, {arithmetic.name}; "
        f"seconds {how}; python benchmarks/run_time.py --network {asked.network} "
        f"--batches {asked.batches} --rounds {asked.rounds} --device {asked.device} "
        f"--threads {asked.threads}",
        highlight=False,
    )
    console.print(table_of(runs, batches))
    if asked.plot:
        title = f"{TITLES[column.dataset]} / {TITLES[column.network]}", f"{how}; {where}"
        seconds_by_method(costs_of(runs, batches), styles(runs), title, asked.plot)


def label(run: Trained) -> str:
    cell = run.learner.cell
    return chosen(cell.method, cell.network).label


def ratios(run: Trained, sgd: Trained) -> list[float]:
    """Of its times to those of SGD, each in the same round."""
    return [mine / its for mine, its in zip(run.times, sgd.times, strict=True)]


def costs_of(runs: Mapping[str, Trained], batches: int) -> list[Cost]:
    return [
        Cost(
            method,
            label(run),
            batches * median(run.times),
            median(ratios(run, runs["sgd"])),
        )
        for method, run in runs.items()
    ]


def table_of(runs: Mapping[str, Trained], batches: int) -> Table:
    table = Table("method", "s an epoch", "÷ SGD", "forward passes a step")
    for column in table.columns[1:]:
        column.justify = "right"
    for run in runs.values():
        seconds = [batches * each for each in run.times]
        least, half, most = map(three_digits, (min(seconds), median(seconds), max(seconds)))
        table.add_row(
            label(run),
            f"{half} ({least} to {most})",
            middle(ratios(run, runs["sgd"]), 2),
            f"{median(run.passes):.2f}",
        )
    return table


if __name__ == "__main__":
    main()
