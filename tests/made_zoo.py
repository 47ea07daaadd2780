"""Records of the zoo, made from formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from made_records import row, write

from cgqbench.experiments import EXPERIMENTS
from cgqbench.methods import chosen
from cgqbench.records.train_curve import stretch
from cgqbench.tasks.zoo import EPOCHS, MEMBERS

CLASSIFIED = ("convnet", "resnet_gn", "gcn", "vit", "finetune", "vgg_svhn", "mixer", "sorting")
DECAY = 400
"""Steps in which a train loss falls to 1/e of its way."""


def cell(
    folder: Path,
    task: str,
    method: str,
    final: float | None,
    average: float | None = None,
    speed: float = 1.0,
    seed: int = 0,
    **told: Any,
) -> Path:
    """A run that ends at a test accuracy or, of other tasks, a test loss; None: it diverged.

    Its train loss is e^(-speed·step / DECAY) of a start of 2, above 0.5.
    """
    member = MEMBERS[task]
    batches = member.steps // EPOCHS
    known = chosen(method, task)
    rows = []
    for epoch in range(1, EPOCHS + 1):
        shares = [1 if value is None else value for value in (final, average or final)]
        left = 0.5**epoch if epoch < EPOCHS else 0.0
        values = [share * (1 - left) + left * _start(task) for share in shares]
        rows.append(row(epoch, **_tested(task, *values), passes=_passes(method)))
        rows[-1]["train_loss"] = train_loss(batches * epoch, speed)
        rows[-1]["train_losses"] = train_losses(batches, epoch, speed)
    if final is None:
        rows = [row(1, train_loss=None)]
    return write(
        folder,
        rows,
        end="diverged" if final is None else "finished",
        times=[batches * 0.004 * _passes(method)] * len(rows),
        settings=known.settings,
        label=known.label,
        batches=batches,
        **{"experiment": "zoo", "dataset": "zoo", "network": task, "method": method},
        **{"seed": seed, "epochs": EPOCHS, "batch_size": member.batch_size, **told},
    )


def train_loss(step: float, speed: float) -> float:
    return 0.5 + 1.5 * math.exp(-speed * step / DECAY)


def train_losses(batches: int, epoch: int, speed: float) -> list[float]:
    size = stretch(batches)
    parts: Sequence[range] = [range(at, min(at + size, batches)) for at in range(0, batches, size)]
    before = batches * (epoch - 1)
    return [
        sum(train_loss(before + step + 1, speed) for step in part) / len(part) for part in parts
    ]


def _start(task: str) -> float:
    return 20.0 if task in CLASSIFIED else 4.0


def _passes(method: str) -> float:
    return 1.1 if method.startswith("search") else 1.0


def _tested(task: str, final: float, average: float) -> dict[str, float]:
    if task in CLASSIFIED:
        found = {"test_accuracy": final, "average_test_accuracy": average}
        return {**found, "test_loss": (100 - final) / 30, "average_test_loss": (100 - average) / 30}
    return {"test_loss": final, "average_test_loss": average}


def zoo(folder: Path, seeds: int = 1, tasks: Sequence[str] = tuple(MEMBERS)) -> None:
    """Every cell: one rate is best, a schedule helps, DoG is slow and one of its runs diverges."""
    strength = {"schedulefree_adamw": 1.03, "prodigy": 1.01, "dadaptation": 1.12, "dog": 1.4}
    for made in EXPERIMENTS["zoo"].cells(seeds):
        if made.network not in tasks:
            continue
        number = list(MEMBERS).index(made.network)
        base, rate = made.method.partition(":")[0], chosen(made.method, made.network).settings["lr"]
        worse = strength.get(base, 1.0)
        if base.startswith("adamw"):
            off = math.log10(rate) + 2.4 + 0.1 * (number % 5)
            worse = 1.04 - 0.04 * (base == "adamw_cosine") + 0.25 * off**2
        wobble = 1 + 0.004 * math.sin(3 * number + 5 * made.seed + len(made.method))
        worse *= wobble * (1 + 0.02 * math.sin(number * len(base)))
        final: float | None = 1.5 * worse if made.network not in CLASSIFIED else 100 - 8 * worse
        if base == "dog" and made.network == "vgg_svhn":
            final = None
        average = final and (final * 0.98 if made.network not in CLASSIFIED else final + 0.4)
        cell(folder, made.network, made.method, final, average, 1 / worse, made.seed)
