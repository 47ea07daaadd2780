"""The runner's loop against a bare hand-written one, same network and method: `make bench`."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer
from torch.optim.swa_utils import AveragedModel

from cgq import CGQ, anytime_average
from cgqbench.experiments.cell import Cell
from cgqbench.tasks.data import load
from cgqbench.tasks.named import by_name
from cgqbench.tasks.networks import network
from cgqbench.tasks.task import Task
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.epoch import train_epoch
from cgqbench.training.feed import Feed
from cgqbench.training.learner import Learner

EXAMPLES = 12_800
ROUNDS = 9
BARE: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True),
    "adam": lambda model: Adam(model.parameters(), 1e-3),
    "scgq": lambda model: CGQ(model.parameters(), search_prob=0.1, smoothing=0.5, model=model),
    "cgq": lambda model: CGQ(model.parameters(), smoothing=0.5, model=model),
}


def bare_epoch(
    model: nn.Module,
    optimizer: Optimizer,
    averaged: AveragedModel | None,
    inputs: Tensor,
    targets: Tensor,
) -> float:
    """What one would write by hand: floats in memory, a permutation, steps, the mean loss."""
    total, batches = 0.0, 0
    for rows in torch.split(torch.randperm(len(inputs)), 64):
        x, y = inputs[rows], targets[rows]
        if isinstance(optimizer, CGQ):
            total += optimizer.step(lambda x=x, y=y: cross_entropy(model(x), y)).item()
        else:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item()
        if averaged is not None:
            averaged.update_parameters(model)
        batches += 1
    return total / batches


def seconds(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def ratios(method: str, task: Task, average: bool) -> list[float]:
    """Bare time ÷ the runner's, epoch by epoch in turn: 1 means as fast, less is slower."""
    cell = Cell("bench", "mnist", "mlp", method, seed=0, epochs=20, average=average)
    device = torch.device("cpu")
    feed = Feed(task, device, cell.batch_size, cell.seed)
    learner = Learner(cell, task, feed, Arithmetic(device))
    torch.manual_seed(0)
    model = network("mlp", (1, 28, 28), 10)
    optimizer = BARE[method](model)
    averaged = AveragedModel(model, multi_avg_fn=anytime_average()) if average else None
    inputs, targets = task.train[0].float() / 255 - 0.5, task.train[1]
    found = []
    for round_ in range(ROUNDS + 1):

        def ours(epoch: int = round_ + 1) -> object:
            return train_epoch(learner, epoch, lambda progress: None)

        bare = seconds(lambda: bare_epoch(model, optimizer, averaged, inputs, targets))
        found.append(bare / seconds(ours))
    return found[1:]  # the first warms up


def main() -> None:
    torch.set_num_threads(1)
    console = Console()
    data = load("mnist")
    task = by_name("mnist", "mlp")
    few = (data.train.images[:EXAMPLES], data.train.labels[:EXAMPLES])
    task = replace(task, train=few)
    table = Table(
        "method",
        "throughput ÷ bare loop",
        "the same, both averaging the weights",
        title=f"The runner's loop, MLP on MNIST, batch 64, median of {ROUNDS} epochs",
    )
    for method in track(BARE, "measuring", console=Console(stderr=True), transient=True):
        plain, averaged = (
            statistics.median(ratios(method, task, average)) for average in (False, True)
        )
        table.add_row(method, f"{plain:.2f}", f"{averaged:.2f}")
    console.print(table)
    console.print(
        f"torch {torch.__version__}, Python {platform.python_version()}, 1 thread. "
        "Command: python benchmarks/loop.py",
        highlight=False,
    )


if __name__ == "__main__":
    main()
