"""Which kernels cuDNN takes, and what that is worth: by either of its rules, or by a race.

Each choice has two processes of its own: torch reads the rule once, and equal runs must have equal
bits, or no record could be repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch
from floor import FIRST, PROBE, passes_alone, timed
from gpu import BATCH, task_for
from rich.console import Console
from rich.table import Table
from where import measured_on

from cgqbench.experiments.cell import Cell
from cgqbench.training.arithmetic import RULE_B, Arithmetic
from cgqbench.training.epoch import train_epoch
from cgqbench.training.feed import Feed
from cgqbench.training.learner import Learner

CHOICES = {"rule A": "0", "rule B": "1", "race": "0"}
"""What `RULE_B` is set to; a race takes no notice of it."""
NETWORKS = ("vgg16", "resnet110", "resnet164", "densenet100")
STEPS, TURNS = 60, 5


def measured(name: str, fast: bool, choice: str) -> dict[str, Any]:
    """Of one network in one arithmetic: ms of its passes, and what an epoch of SGD comes to."""
    device = torch.device("cuda", 0)
    arithmetic, task = Arithmetic(device, fast), task_for(name)
    arithmetic.set_up(1)
    os.environ[RULE_B], torch.backends.cudnn.benchmark = CHOICES[choice], choice == "race"
    feed = Feed(task, device, BATCH, 0)
    cell = Cell("kernels", "images", name, "sgd:lr=0.01", 0, 1, BATCH, average=False)
    learner = Learner(cell, task, feed, arithmetic, graphs=True)
    row = train_epoch(learner, 1, lambda progress: None)
    weights = torch.cat([p.detach().flatten() for p in learner.model.parameters()]).cpu()
    digest = hashlib.sha256(json.dumps(row).encode() + weights.numpy().tobytes()).hexdigest()
    kinds = {"first": [FIRST], "probe": [PROBE]}
    times = {
        kind: 1e3 * timed(passes_alone(learner, passes), device, STEPS, TURNS)[0]
        for kind, passes in kinds.items()
    }
    return {"network": name, "arithmetic": arithmetic.name, **times, "digest": digest[:12]}


def measured_apart(choice: str, networks: Sequence[str], fast: bool) -> list[dict[str, Any]]:
    """All of it, in a process of its own."""
    words = [sys.executable, __file__, "--only", *networks, "--child", choice]
    words += ["--fast"] * fast
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def table_of(networks: Sequence[str], fast: bool, notes: Console) -> Table:
    table = Table(
        "network", "arithmetic", "kernels by", "forward and backward, ms", "÷ rule A",
        "forward, ms", "÷ rule A", "equal runs, equal bits",
    )  # fmt: skip
    known: dict[tuple[str, str], dict[str, Any]] = {}
    for choice in CHOICES:
        notes.print(f"[dim]{choice}[/]")
        for one, again in zip(
            *(measured_apart(choice, networks, fast) for _ in range(2)), strict=True
        ):
            notes.print(f"[dim]{one} {again}[/]")
            key = one["network"], one["arithmetic"]
            base = known.setdefault(key, one)
            table.add_row(
                *key,
                choice,
                f"{one['first']:.2f}",
                f"{one['first'] / base['first']:.2f}",
                f"{one['probe']:.2f}",
                f"{one['probe'] / base['probe']:.2f}",
                "yes" if one["digest"] == again["digest"] else "no",
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--fast", action="store_true", help="in bf16 as well")
    parser.add_argument("--child", choices=CHOICES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("There is no CUDA device here.")
    if asked.child:
        for name in asked.only:
            for fast in (False, True) if asked.fast else (False,):
                print(json.dumps(measured(name, fast, asked.child)), flush=True)
        return
    console = Console(width=120)
    where = f"{measured_on(torch.device('cuda', 0))}. Batch {BATCH}."
    console.print(where, f"python {' '.join(sys.argv)}", highlight=False)
    console.print(table_of(asked.only, asked.fast, Console(stderr=True)))


if __name__ == "__main__":
    main()
