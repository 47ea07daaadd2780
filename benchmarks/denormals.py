"""What numbers below 1.2e-38 cost a step on this processor: `torch.set_flush_denormal`.

The momentum of a unit that has gone dark has no gradient left; it shrinks with every step, and is
denormal within an epoch. Some processors take many times as long over such a number. Each method
trains the paper's MLP on MNIST twice, side by side, epoch by epoch in turn: as torch does it, and
with denormals taken as zero. The first epoch, in which units go dark, is not counted. In the end
the weights of both are compared bit for bit.
"""

from __future__ import annotations

import argparse
from statistics import median

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from trained import Trained, middle
from where import measured_on

from cgqbench.experiments.cell import Cell, task_of
from cgqbench.methods import chosen
from cgqbench.training.arithmetic import Arithmetic

METHODS = ("sgd", "sgd_cosine", "adam", "scgq", "cgq", "search")
CPU = torch.device("cpu")
SMALLEST = torch.finfo(torch.float32).tiny


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6, help="2 or more")
    asked = parser.parse_args()
    if asked.epochs < 2:
        parser.error("Give 2 or more epochs: the first is not counted.")
    arithmetic = Arithmetic(CPU)
    arithmetic.set_up(threads=1)
    table = Table(
        "method", "denormals in its state", "ms a step", "÷ with them as zero", "same weights"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for method in track(METHODS, console=Console(stderr=True)):
        cell = Cell("compare", "mnist", "mlp", method, 0, 10, 64)
        task = task_of(cell)
        torch.set_flush_denormal(False)
        kept = Trained(cell, task, arithmetic)
        torch.set_flush_denormal(True)
        zero = Trained(cell, task, arithmetic)
        for _ in range(asked.epochs - 1):
            torch.set_flush_denormal(False)
            kept.epoch()
            torch.set_flush_denormal(True)
            zero.epoch()
        torch.set_flush_denormal(False)  # which would count none
        table.add_row(
            chosen(method, "mlp").label,
            f"{denormals(kept):,}",
            f"{1000 * median(kept.times):.2f}",
            middle([slow / quick for slow, quick in zip(kept.times, zero.times, strict=True)], 2),
            "yes" if same_weights(kept, zero) else "no",
        )
    console = Console(width=100)
    console.print(f"{measured_on(CPU)}, 1 thread", highlight=False)
    console.print(
        f"mlp on mnist, batch 64, the middle of {asked.epochs - 1} epochs; "
        f"python benchmarks/denormals.py --epochs {asked.epochs}",
        highlight=False,
    )
    console.print(table)


def same_weights(one: Trained, other: Trained) -> bool:
    both = zip(one.learner.model.parameters(), other.learner.model.parameters(), strict=True)
    return all(torch.equal(mine, its) for mine, its in both)


def denormals(run: Trained) -> int:
    """How many numbers of its optimizer's state are denormal."""
    optimizer = run.learner.optimizer
    tensors = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    return sum(int(((each != 0) & (each.abs() < SMALLEST)).sum()) for each in tensors)


if __name__ == "__main__":
    main()
