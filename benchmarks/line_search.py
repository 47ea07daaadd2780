"""What `LineSearch` and the average cost on top of bare AdamW, on the GPT: `make bench`.

Both train the same network in turns, as `cgq` runs them; on a GPU as CUDA graphs and eagerly. The
policy is the default one, timed once it has settled: before, every batch is searched. The whole is
the clock's time of a turn; its parts are from turns of their own, in which marks between the steps
take time as well. The floor is its passes alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

import torch
from floor import FIRST, PROBE, passes_alone, timed, wait
from rich.console import Console
from rich.table import Table
from torch import Tensor
from where import measured_on

from cgqbench.experiments.cell import Cell
from cgqbench.tasks.named import by_name
from cgqbench.tasks.task import Task
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.feed import Feed
from cgqbench.training.learner import Learner

BATCH = 32
GOAL = 1.15
WARM_UP = 3
PATIENCE = 1000  # steps in which the share should settle
SETTLING_BATCH = 4  # on a CPU, where settling would take longer than all the rest


class Marks:
    """Moments on the timeline of a device, taken without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._moments: list[Any] = []

    def add(self) -> None:
        """Mark this moment."""
        if self._device.type == "cpu":
            self._moments.append(time.perf_counter())
            return
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._moments.append(event)

    def seconds(self) -> list[float]:
        """From each mark to the next."""
        pairs = list(pairwise(self._moments))
        if self._device.type == "cpu":
            return [later - earlier for earlier, later in pairs]
        torch.cuda.synchronize(self._device)
        return [earlier.elapsed_time(later) / 1e3 for earlier, later in pairs]


class Trained:
    """A method on a network, trained step by step, and what its steps took."""

    def __init__(
        self,
        method: str,
        network: str,
        task: Task,
        device: torch.device,
        *,
        graphs: bool,
        fused: bool = False,
    ) -> None:
        cell = Cell("line_search", "stdlib", network, method, 0, 1, BATCH, method == "search")
        self._feed = Feed(task, device, BATCH, 0)
        self._learner = Learner(cell, task, self._feed, Arithmetic(device), graphs=graphs)
        if fused:
            params = self._learner.model.parameters()
            self._learner.optimizer = torch.optim.AdamW(params, fused=True)
        self._device, self._batches = device, self._endless()
        self.turns: list[float] = []
        self.steps: list[float] = []
        self.averages: list[float] = []
        self.searched: list[bool] = []
        self._alone = [passes_alone(self._learner, kinds) for kinds in ([FIRST], [FIRST, PROBE])]
        self._floors: tuple[list[float], list[float]] = ([], [])
        self._settle()

    def _endless(self) -> Iterator[tuple[Tensor, Tensor]]:
        for epoch in count(1):
            yield from self._feed.epoch(epoch)

    def _step(self, batch_size: int = BATCH) -> None:
        inputs, targets = next(self._batches)
        closure = self._learner.closure(inputs[:batch_size], targets[:batch_size])
        self._learner.optimizer.step(closure)  # type: ignore[arg-type]

    def _settle(self) -> None:
        group = self._learner.optimizer.param_groups[0]
        size = SETTLING_BATCH if self._device.type == "cpu" else BATCH
        for _ in range(PATIENCE):
            if not group.get("alert"):
                break
            self._step(size)
        self.turn(WARM_UP)
        self.marked_turn(WARM_UP)
        self.turns, self.steps, self.averages, self.searched = [], [], [], []

    def _average(self) -> None:
        if self._learner.averaged is not None:
            self._learner.averaged.update_parameters(self._learner.model)

    def turn(self, steps: int) -> None:
        """Take some steps, and note what one took."""
        wait(self._device)
        began = time.perf_counter()
        for _ in range(steps):
            self._step()
            self._average()
        wait(self._device)
        self.turns.append((time.perf_counter() - began) / steps)

    def floor_turn(self, steps: int) -> None:
        """Note what the passes of a step take with nothing else: not searched, and searched."""
        for work, floors in zip(self._alone, self._floors, strict=True):
            floors.append(timed(work, self._device, steps, turns=1)[0])

    @property
    def floor(self) -> float:
        """What the passes of its steps take, on average."""
        first, both = (statistics.mean(floors) for floors in self._floors)
        return first + statistics.mean(self.searched) * (both - first)

    def marked_turn(self, steps: int) -> None:
        """Take some steps, and time each, and its average."""
        learner, marks = self._learner, Marks(self._device)
        marks.add()
        for _ in range(steps):
            self._step()
            marks.add()
            self._average()
            marks.add()
            self.searched.append(getattr(learner.optimizer, "last_search", None) is not None)
        seconds = marks.seconds()
        self.steps += seconds[::2]
        self.averages += seconds[1::2]


def row_of(
    network: str, task: Task, device: torch.device, *, graphs: bool, turns: int, steps: int
) -> list[str]:
    """Times as ratios to bare AdamW's step: the whole, then its parts."""
    bare = Trained("adamw", network, task, device, graphs=graphs)
    fused = Trained("adamw", network, task, device, graphs=graphs, fused=True)
    ours = Trained("search", network, task, device, graphs=graphs)
    for _ in range(turns):
        for trained in (bare, fused, ours):
            trained.turn(steps)
        for trained in (bare, ours):
            trained.marked_turn(steps)
        ours.floor_turn(steps)
    unit, marked_unit = statistics.mean(bare.turns), statistics.mean(bare.steps)
    pairs = list(zip(ours.steps, ours.searched, strict=True))
    parts = [[time for time, searched in pairs if searched is kind] for kind in (False, True)]
    whole = statistics.mean(ours.turns)
    ratios = [statistics.mean(part) if part else 0.0 for part in [*parts, ours.averages]]
    verdict = "" if whole <= GOAL * unit else " missed"
    return [
        network,
        "CUDA graphs" if graphs else "eager",
        f"{1e3 * unit:.2f}",
        f"{whole / unit:.3f}{verdict}",
        f"{ours.floor / unit:.3f}",
        f"{whole / statistics.mean(fused.turns):.3f}",
        *(f"{ratio / marked_unit:.3f}" for ratio in ratios),
        f"{len(parts[1])} of {len(pairs)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--only", choices=("gpt1m", "gpt10m"), help="a network, for a quick look")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    on_gpu = device.type == "cuda"
    if on_gpu and not torch.cuda.is_available():
        sys.exit("There is no CUDA device here.")
    Arithmetic(device).set_up(torch.get_num_threads())
    notes, console = Console(stderr=True), Console(width=110)
    turns, steps = (8, 50) if on_gpu else (50, 1)
    table = Table(
        "network", "passes", "AdamW, ms", f"LineSearch + average, ≤ {GOAL}", "floor",
        "÷ fused AdamW", "step not searched", "step searched", "average", "searched",
    )  # fmt: skip
    networks = [asked.only] if asked.only else ["gpt1m", "gpt10m"] if on_gpu else ["gpt1m"]
    for network in networks:
        task = by_name("stdlib", network)
        for graphs in (True, False) if on_gpu else (False,):
            row = row_of(network, task, device, graphs=graphs, turns=turns, steps=steps)
            notes.print(f"[dim]{', '.join(row)}[/]")
            table.add_row(*row)
    where = "" if on_gpu else f", {torch.get_num_threads()} threads"
    console.print(
        f"{measured_on(device)}{where}. python benchmarks/line_search.py --device {device}",
        highlight=False,
    )
    console.print(
        f"batch {BATCH}; means of {turns * steps} steps in {turns} turns, as ratios to a step of "
        "bare AdamW, torch's default, without an average, and to AdamW(fused=True); the parts from "
        "as many steps with marks between them",
        highlight=False,
    )
    console.print(table)


if __name__ == "__main__":
    main()
