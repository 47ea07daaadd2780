"""Records of the experiments without a rate, made from formulas."""

import math
import sys
from pathlib import Path
from typing import Any

from made_records import row, write

from cgqbench.experiments import EXPERIMENTS
from cgqbench.methods import chosen


def keeping(monkeypatch: Any, module: str) -> list[Any]:
    """The figures that a module of `figures` draws from now on, instead of their files."""
    kept: list[Any] = []

    def keep(figure: Any, path: Path) -> Path:
        figure.draw_without_rendering()
        kept.append(figure)
        return path

    monkeypatch.setattr(sys.modules[f"cgqbench.output.figures.{module}"], "saved", keep)
    return kept


GPT = {"dataset": "stdlib", "network": "gpt1m", "batch_size": 32, "epochs": 6}


def cell(
    folder: Path,
    experiment: str,
    method: str,
    final: float | None,
    average: float | None = None,
    accuracies: tuple[float, float] | None = None,
    **named: Any,
) -> Path:
    """A run of one method: a test loss at the end, that of the average, or both accuracies."""
    named = {**GPT, **named}
    known = chosen(method, named["network"])
    if final is None:
        rows, end = [row(1)], "diverged"
    else:
        end, start = "finished", min(4.5, final + 1)
        first, last = accuracies or (None, None)
        rows = [
            row(1, train_loss=start, test_loss=start),
            row(
                2,
                train_loss=final,
                test_loss=final,
                average_test_loss=average,
                test_accuracy=first,
                average_test_accuracy=last,
            ),
        ]
    told = {"settings": known.settings, "label": known.label, "end": end}
    return write(folder, rows, experiment=experiment, method=method, **told, **named)


def any_rate(folder: Path, seeds: int = 3) -> None:
    """Every cell: alone, each base has one good rate; inside LineSearch all are good."""
    for made in EXPERIMENTS["any_rate"].cells(seeds):
        settings = chosen(made.method, made.network).settings
        wobble = 0.006 * math.sin(7 * made.seed + 3 * math.log10(settings["lr"]))
        base = settings.get("base", made.method.partition(":")[0])
        good = {"adamw": -2.7, "sgd": -0.8, "adagrad": -1.6, "muon": -2.0}[base]
        if made.method.startswith("search"):
            floor = {"adamw": 1.45, "sgd": 1.7, "adagrad": 1.55, "muon": 1.43}[base]
            cell(folder, "any_rate", made.method, floor + 0.1, floor + wobble, seed=made.seed)
            continue
        off = math.log10(settings["lr"]) - good
        loss = min(4.57, 1.6 + 0.32 * off**2) if off < 0 else 1.6 + 0.7 * off**2
        lost = base == "muon" and settings["lr"] == 1
        final = None if lost else loss * (1 + wobble)
        cell(folder, "any_rate", made.method, final, 0.97 * loss, seed=made.seed)


def ceiling(folder: Path, seeds: int = 1) -> None:
    """Every cell: one ceiling is best, the search helps where it is too high, VGG dies there."""
    for made in EXPERIMENTS["ceiling"].cells(seeds):
        settings = chosen(made.method, made.network).settings
        searched = settings["search_prob"] > 0
        off = math.log(settings["max_relative_step"] / 0.006)
        harm = off**2 * (0.5 if searched and off > 0 else 1.0) + 0.03 * math.sin(9 * made.seed)
        named = {
            key: getattr(made, key)
            for key in ("dataset", "network", "seed", "batch_size", "epochs")
        }
        dies = made.network == "vgg16" and off > (1.5 if searched else 0.9)
        if made.dataset == "stdlib":
            cell(folder, "ceiling", made.method, 1.53 + 0.1 * harm, 1.44 + 0.08 * harm, **named)
        elif dies:
            cell(folder, "ceiling", made.method, 2.303, 2.303, (10.0, 10.0), **named)
        else:
            ends = (80 - 2 * harm, 86 - 1.5 * harm)
            cell(folder, "ceiling", made.method, 0.5, 0.4, ends, **named)
