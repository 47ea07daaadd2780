"""SGD at six learning rates and CGQ at none, on two interleaved spirals.

`python examples/spirals.py` prints a table and writes out/spirals.png. It takes about a minute.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from cgq import CGQ

RATES = [10.0**exponent for exponent in (-4, -3, -2, -1, 0, 1)]
SEEDS = 3
EPOCHS = 30
Factory = Callable[[nn.Module], Optimizer]


def spirals(count: int) -> tuple[Tensor, Tensor]:
    """Points on two arms wound around each other, with a little noise."""
    angle = 3 * math.pi * torch.rand(count).sqrt()
    label = torch.arange(count) % 2
    turned = angle + math.pi * label
    points = torch.stack([turned.cos(), turned.sin()], 1) * angle[:, None] / (3 * math.pi)
    return points + 0.02 * torch.randn_like(points), label


def train(make: Factory, seed: int) -> tuple[list[float], float]:
    """The training loss of each epoch and the accuracy on fresh points at the end."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    inputs, targets = spirals(2000)
    test_inputs, test_targets = spirals(2000)
    optimizer = make(model)
    losses = []
    for _ in range(EPOCHS):
        total = 0.0
        for batch in torch.split(torch.randperm(len(inputs)), 50):

            def loss(batch: Tensor = batch) -> Tensor:
                return nn.functional.cross_entropy(model(inputs[batch]), targets[batch])

            if isinstance(optimizer, CGQ):
                total += optimizer.step(loss).item()
            else:
                optimizer.zero_grad()
                value = loss()
                value.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += value.item()
        losses.append(total / 40)
    with torch.no_grad():
        hits = model(test_inputs).argmax(1) == test_targets
    return losses, 100 * hits.float().mean().item()


def contenders() -> dict[str, Factory]:
    found: dict[str, Factory] = {
        f"SGD {rate:g}": lambda model, rate=rate: SGD(  # type: ignore[misc]
            model.parameters(), lr=rate, momentum=0.9, nesterov=True
        )
        for rate in RATES
    }
    found["CGQ"] = lambda model: CGQ(model.parameters())
    found["sCGQ"] = lambda model: CGQ(model.parameters(), search_prob=0.1, smoothing=0.5)
    return found


def draw(curves: dict[str, Tensor], path: Path) -> None:
    """Left: the loss by epoch. Right: the last loss over SGD's learning rate."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    greys = plt.get_cmap("Greys")(torch.linspace(0.3, 0.9, len(RATES)).tolist())
    colours = dict(zip([name for name in curves if name.startswith("SGD")], greys, strict=True))
    colours |= {"CGQ": "tab:red", "sCGQ": "tab:orange"}
    epochs = range(1, EPOCHS + 1)
    for name, losses in curves.items():
        wide = 2.5 if "CGQ" in name else 1.2
        left.plot(epochs, losses.mean(0).tolist(), label=name, color=colours[name], linewidth=wide)
    left.set(xlabel="epoch", ylabel="training loss", yscale="log", ylim=(1e-3, 2))
    left.legend(fontsize=7)
    last = (
        torch.stack([curves[f"SGD {rate:g}"][:, -1] for rate in RATES]).nan_to_num(2).clamp_max(2)
    )
    right.plot(RATES, last.mean(1).tolist(), "o-", color="dimgrey", label="SGD, momentum 0.9")
    for name in ("CGQ", "sCGQ"):
        right.axhline(
            curves[name][:, -1].mean().item(), color=colours[name], label=f"{name}, no rate"
        )
    right.set(xscale="log", yscale="log", xlabel="learning rate of SGD", ylim=(1e-3, 2))
    right.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    torch.set_num_threads(1)  # threads only get in the way of layers this small
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/spirals.png"), help="where to draw")
    path = parser.parse_args().out
    console = Console()
    runs = [(name, make, seed) for name, make in contenders().items() for seed in range(SEEDS)]
    curves: dict[str, list[list[float]]] = {}
    accuracies: dict[str, list[float]] = {}
    for name, make, seed in track(runs, "training", console=console):
        losses, accuracy = train(make, seed)
        curves.setdefault(name, []).append(losses)
        accuracies.setdefault(name, []).append(accuracy)
    table = Table(
        "optimizer",
        "train loss",
        "test accuracy %",
        title=f"two spirals, {EPOCHS} epochs, mean of {SEEDS} seeds",
    )
    for name in curves:
        loss = torch.tensor(curves[name])[:, -1].mean().item()
        accuracy = torch.tensor(accuracies[name]).mean().item()
        style = "bold" if "CGQ" in name else None
        table.add_row(
            name, "diverged" if math.isnan(loss) else f"{loss:.4f}", f"{accuracy:.1f}", style=style
        )
    console.print(table)
    draw({name: torch.tensor(losses) for name, losses in curves.items()}, path)
    console.print(f"Look at {path}", soft_wrap=True)


if __name__ == "__main__":
    main()
