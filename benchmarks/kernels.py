"""Where the time of a step goes on a GPU, beside the floor, its passes alone: `make bench-gpu`.

`rest` is what the device does besides the passes, by kernels; `host` is how long the host is busy
until the step returns. A step that the host takes longer for than the device leaves it idle.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from floor import FIRST, PROBE, Work, passes_alone, timed
from gpu import OnGPU, task_for
from line_search import Trained as OnText
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile
from where import measured_on

from cgqbench.tasks.named import by_name
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.learner import Learner

STEPS, TURNS = 40, 5
SHOWN = 8  # kernels, and functions of the host
Kernels = dict[str, tuple[float, float]]


class Case(NamedTuple):
    """A step, by what it is called, and as often as it runs them its passes."""

    name: str
    step: Work
    passes: list[bool]
    learner: Learner


def kernels(work: Work) -> Kernels:
    """Of each kernel how often it is launched and how long it takes."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(STEPS):
            work()
        torch.cuda.synchronize()
    return {
        each.key: (each.count / STEPS, each.self_device_time_total / STEPS)
        for each in seen.key_averages()
        if each.device_type.name == "CUDA" and not each.key.startswith("Optimizer.")
    }


def functions(work: Work) -> list[str]:
    """What the host does most."""
    profiler = cProfile.Profile()
    with profiler:
        for _ in range(STEPS):
            work()
        torch.cuda.synchronize()
    found = pstats.Stats(profiler).get_stats_profile().func_profiles
    names = sorted(found, key=lambda name: -found[name].tottime)[:SHOWN]
    return [f"{1e6 * found[name].tottime / STEPS:7.0f} µs  {name}" for name in names]


def shown(case: Case, table: Table, console: Console) -> None:
    """Its row, and what it consists of."""
    floor, device = passes_alone(case.learner, case.passes), torch.device("cuda", 0)
    for _ in range(10):
        case.step()
    whole, host = timed(case.step, device, STEPS, TURNS)
    least, _ = timed(floor, device, STEPS, TURNS)
    of_step, of_passes = kernels(case.step), kernels(floor)
    rest: Kernels = {}
    for name, (count, taken) in of_step.items():
        known = of_passes.get(name, (0.0, 0.0))
        if (more := count - known[0]) > 0.01:
            rest[name] = more, taken - known[1]
    busy = sum(taken for _, taken in of_step.values())
    table.add_row(
        case.name,
        *(f"{1e3 * each:.2f}" for each in (whole, least, busy / 1e6, host)),
        f"{sum(count for count, _ in rest.values()):.0f}",
        f"{sum(taken for _, taken in rest.values()):.0f}",
    )
    console.print(f"[bold]{case.name}[/]: what the device does besides its passes")
    for name in sorted(rest, key=lambda name: -rest[name][1])[:SHOWN]:
        count, taken = rest[name]
        console.print(f"{taken:7.0f} µs  × {count:5.1f}  {name[:86]}", highlight=False)
    console.print("and the host")
    console.print("\n".join(functions(case.step)), highlight=False, markup=False)


def on_images(method: str, passes: list[bool]) -> Case:
    arithmetic = Arithmetic(torch.device("cuda", 0))
    learner = OnGPU("vgg16", method, task_for("vgg16"), arithmetic).learner
    inputs, targets = (part.clone() for part in next(iter(learner.feed.epoch(1))))
    optimizer = learner.optimizer

    def step() -> None:
        optimizer.step(learner.closure(inputs, targets))  # type: ignore[arg-type]

    return Case(f"VGG-16, {method}", step, passes, learner)


def on_text(method: str, passes: list[bool], due: bool | None = None) -> Case:
    device = torch.device("cuda", 0)
    trained = OnText(method, "gpt1m", by_name("stdlib", "gpt1m"), device, graphs=True)
    learner, words = trained._learner, {None: "", True: ", searched", False: ", not searched"}
    if due is not None:
        learner.optimizer._is_due = lambda: due  # type: ignore[attr-defined]

    def step() -> None:
        trained._step()
        if learner.averaged is not None:
            learner.averaged.update_parameters(learner.model)

    return Case(f"GPT-1M, {method}{words[due]}", step, passes, learner)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not torch.cuda.is_available():
        sys.exit("There is no CUDA device here.")
    device = torch.device("cuda", 0)
    Arithmetic(device).set_up(1)
    table = Table(
        "step", "ms", "floor, ms", "device busy, ms", "host, ms", "kernels besides", "they take, µs"
    )
    console = Console(width=110)
    cases: list[Callable[[], Case]] = [
        partial(on_images, "sgd", [FIRST]),
        partial(on_images, "scgq:search_prob=0.0001", [FIRST]),
        partial(on_images, "cgq", [FIRST, PROBE, PROBE]),
        partial(on_text, "adamw", [FIRST]),
        partial(on_text, "search", [FIRST], due=False),
        partial(on_text, "search", [FIRST, PROBE], due=True),
        partial(on_text, "search", [FIRST]),
    ]
    for make in cases:
        shown(make(), table, console)
    console.print(f"{measured_on(device)}. python benchmarks/kernels.py", highlight=False)
    console.print(table)


if __name__ == "__main__":
    main()
