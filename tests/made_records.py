"""Records as a training run would leave them, made from formulas."""

import math
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cgqbench.experiments.cell import Cell
from cgqbench.records.record import Record

LABELS = {"sgd": "SGD", "adam": "Adam", "cgq": "CGQ(2pt)", "scgq": "sCGQ(2pt)", "pal": "PAL"}


def row(epoch: int, **values: float | None) -> dict[str, Any]:
    """An epoch's line; what is not given was not recorded."""
    names = ("train_loss", "test_loss", "test_accuracy", "average_test_loss")
    names += ("average_test_accuracy", "step_size", "momentum")
    return {"kind": "epoch", "epoch": epoch, **dict.fromkeys(names), **values}


def write(
    folder: Path,
    rows: list[dict[str, Any]],
    *,
    end: str | None = "finished",
    times: list[float] | None = None,
    settings: dict[str, Any] | None = None,
    label: str | None = None,
    hardware: str = "A made-up processor",
    checksum: str | None = None,
    batches: int = 938,
    arithmetic: str = "float32",
    **cell: Any,
) -> Path:
    """A record of a cell (by default MNIST, MLP, SGD, seed 0); its path."""
    named = {"experiment": "table1", "dataset": "mnist", "network": "mlp", "method": "sgd"}
    made = Cell(**{**named, "seed": 0, "epochs": max(1, len(rows)), **cell})
    path = folder / made.experiment / f"{made.name}.jsonl"
    with Record(path) as record:
        told = {"hardware": hardware, "checksum": checksum, "batches": batches}
        told["arithmetic"] = arithmetic
        record.append({**header(made, settings, label), **told})
        for line in rows:
            record.append(line)
        if end is not None:
            record.append({"kind": "end", "status": end})
        for epoch, seconds in enumerate(times or [], 1):
            record.append_time({"epoch": epoch, "train_seconds": seconds})
    return path


def header(cell: Cell, settings: dict[str, Any] | None, label: str | None) -> dict[str, Any]:
    base = cell.method.partition(":")[0]
    return {
        "kind": "cell",
        **asdict(cell),
        "label": label or LABELS.get(base, base),
        "settings": settings or {"lr": 0.3},
        "parameters": 795010,
        "batches": 938,
        "device": "cpu",
        "hardware": "A made-up processor",
        "threads": 1,
        "versions": {"cgq": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "numpy": "2.4.6"},
        "command": "cgq reproduce table1 --only mnist --seeds 3",
    }


def training(seed: int, epochs: int, speed: float, best: float) -> list[dict[str, Any]]:
    """Epochs of a run that learns: losses fall, accuracies rise, step and momentum settle."""
    draw = random.Random(f"{seed} {speed} {best}")
    rows = []
    for epoch in range(1, epochs + 1):
        noise = 1 + 0.08 * draw.gauss(0, 1)
        accuracy = best - 6 * math.exp(-speed * epoch) + 0.06 * draw.gauss(0, 1)
        rows.append(
            row(
                epoch,
                train_loss=(0.4 * math.exp(-speed * epoch) + 0.002) * noise,
                test_loss=0.1 * noise,
                test_accuracy=accuracy,
                average_test_loss=0.08 * noise,
                average_test_accuracy=best + 0.1 - 5 * math.exp(-1.3 * speed * epoch),
                step_size=0.3 * math.exp(-0.06 * epoch) * noise,
                momentum=min(0.8, 0.2 + 0.02 * epoch * noise),
            )
        )
    return rows


def landscape(folder: Path, searches: int, **cell: Any) -> Path:
    """A landscape file whose lines are rough at first and smooth later."""
    named = {"experiment": "landscape", "dataset": "mnist", "network": "mlp", "method": "cgq"}
    made = Cell(**{**named, "seed": 0, "epochs": 1, **cell})
    path = folder / f"{made.name}.landscape.jsonl"
    with Record(path) as record:
        record.append(header(made, None, None))
        for number in range(searches):
            record.append(search(17 * number + 1, 1 + number // 5, rough=1 / (1 + number)))
    return path


def search(step: int, epoch: int, rough: float) -> dict[str, Any]:
    grid = [0.015 * point for point in range(41)]

    def loss(alpha: float) -> float:
        bend = 0.9 + 2.0 / step
        return bend * (alpha - 0.25) ** 2 + 0.2 + 0.03 * rough * math.sin(30 * alpha)

    slope = (loss(1e-6) - loss(0.0)) / 1e-6
    bend = (loss(0.1) - loss(0.0) - slope * 0.1) / 0.01
    chosen = min(0.3, -slope / (2 * bend)) if bend > 0 else 0.1
    losses: list[float | None] = [loss(alpha) for alpha in grid]
    losses[-1] = None
    return {
        "kind": "landscape",
        "step": step,
        "epoch": epoch,
        "loss": loss(0.0),
        "slope": slope,
        "grid": grid,
        "losses": losses,
        "trial_steps": [0.1, chosen],
        "trial_losses": [loss(0.1), loss(chosen)],
        "step_size": chosen,
        "accepted": loss(chosen) < loss(0.0),
        "capped": chosen == 0.3,
        "ceiling": 0.3,
        "two_point": [bend, slope, loss(0.0)],
        "least_squares": [0.95, -0.49, loss(0.0) + 0.002] if step > 1 else None,
    }
