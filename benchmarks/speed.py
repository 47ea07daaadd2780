"""Time and memory of CGQ against plain torch, as ratios taken in one run: `make bench`."""

from __future__ import annotations

import platform
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from networks import mlp, resnet20, resnet50_parameters
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import cgq
from cgq import CGQ, polak_ribiere

ROUNDS = 9
Job = Callable[[], object]


def medians(jobs: dict[str, Job], seconds: float, least: int) -> dict[str, float]:
    """Median time of each job over rounds in which all take turns, so that noise hits all."""
    repeats = {}
    for name, job in jobs.items():
        job()
        start = time.perf_counter()
        job()
        repeats[name] = max(least, round(seconds / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            job()  # the one before has left its own data in the caches
            start = time.perf_counter()
            for _ in range(repeats[name]):
                job()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return {name: statistics.median(values) for name, values in times.items()}


class Network:
    """A network with a batch of 64, trained by whatever steps."""

    def __init__(self, make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
        torch.manual_seed(0)
        self.model = make()
        self.inputs, self.targets = torch.randn(64, *shape), torch.randint(0, 10, (64,))
        self.searches = self.evaluations = 0

    def loss(self) -> Tensor:
        return cross_entropy(self.model(self.inputs), self.targets)

    def forward(self) -> None:
        with torch.no_grad():
            self.loss()

    def forward_backward(self) -> None:
        self.model.zero_grad()
        self.loss().backward()  # type: ignore[no-untyped-call]

    def sgd(self) -> Job:
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=1e-5, momentum=0.9, nesterov=True, foreach=True
        )

        def step() -> None:
            optimizer.zero_grad()
            self.loss().backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step

    def cgq(self, search_prob: float) -> Job:
        # A low ceiling: the network must stay where it is while it is timed.
        optimizer = CGQ(self.model.parameters(), lr=1e-5, search_prob=search_prob, model=self.model)

        def step() -> None:
            optimizer.step(self.loss)
            if optimizer.last_search is not None:
                self.searches += 1
                self.evaluations += optimizer.last_search.evaluations

        return step


def network_rows(name: str, network: Network, goal: float) -> list[tuple[str, float, float]]:
    time_of = medians(
        {
            "forward": network.forward,
            "forward+backward": network.forward_backward,
            "SGD": network.sgd(),
            "sCGQ": network.cgq(0.1),
        },
        seconds=0.4,
        least=20,  # enough for sCGQ to search about as often as it should
    )
    network.searches = network.evaluations = 0
    searched = medians({"base": network.forward_backward, "CGQ": network.cgq(1.0)}, 0.4, 5)
    probes = network.evaluations / network.searches
    plain = time_of["forward+backward"] + probes * time_of["forward"]
    drift = searched["base"] / time_of["forward+backward"]  # of the machine between the runs
    return [
        (
            f"{name}: searched step ÷ (forward+backward + {probes:.2f} forwards)",
            searched["CGQ"] / drift / plain,
            goal,
        ),
        (
            f"{name}: sCGQ (p=0.1) ÷ SGD (Nesterov 0.9, foreach)",
            time_of["sCGQ"] / time_of["SGD"],
            1.15,
        ),
    ]


def step_row() -> tuple[str, float, float]:
    params = resnet50_parameters()
    for param in params:
        param.grad = 0.01 * torch.randn_like(param)
    sgd = torch.optim.SGD(params, lr=1e-6, momentum=0.9, foreach=True)
    time_of = medians({"SGD": sgd.step, "CGQ": CGQ(params, lr=1e-6).step}, 0.15, 5)
    count = sum(param.numel() for param in params) / 1e6
    name = f"unsearched step(), {len(params)} tensors / {count:.1f} M ÷ SGD momentum foreach"
    return name, time_of["CGQ"] / time_of["SGD"], 1.3


def peak_memory(momentum: str) -> float:
    """Peak resident bytes of three searched steps in a process of its own."""
    return float(
        subprocess.run(
            [sys.executable, __file__, "--memory", momentum],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )


def measure_memory(momentum: str) -> None:
    """Train one layer of 64 M weights: next to it, everything else is small."""
    layer = nn.Linear(8000, 8000, bias=False)
    inputs = torch.randn(2, 8000)

    def loss() -> Tensor:
        return layer(inputs).square().mean()  # type: ignore[no-any-return]

    if momentum == "none":
        for _ in range(3):
            layer.zero_grad()
            loss().backward()  # type: ignore[no-untyped-call]
    else:
        rule = 0.9 if momentum == "0.9" else polak_ribiere
        optimizer = CGQ(layer.parameters(), momentum=rule)
        for _ in range(3):
            optimizer.step(loss)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def memory_rows() -> list[tuple[str, float, float]]:
    copy = 4 * 8000 * 8000
    plain = peak_memory("none")
    return [
        ("extra memory ÷ parameters, rule", (peak_memory("rule") - plain) / copy, 3.0),
        ("extra memory ÷ parameters, heavy ball", (peak_memory("0.9") - plain) / copy, 2.0),
    ]


def main() -> None:
    # Rates are tiny on purpose, and some steps have no closure.
    warnings.simplefilter("ignore", UserWarning)
    jobs: list[Callable[[], list[tuple[str, float, float]]]] = [
        lambda: network_rows("MLP 784-1000-10, batch 64", Network(mlp, (784,)), 1.40),
        lambda: network_rows("ResNet-20, batch 64", Network(resnet20, (3, 32, 32)), 1.10),
        lambda: [step_row()],
        memory_rows,
    ]
    console = Console()
    rows = [row for job in track(jobs, "timing", console=console) for row in job()]
    table = Table("ratio of", "measured", "goal", "")
    for name, measured, goal in rows:
        table.add_row(
            name, f"{measured:.2f}", f"≤ {goal:.2f}", "" if measured <= goal else "missed"
        )
    console.print(table)
    console.print(
        f"python benchmarks/speed.py: medians of {ROUNDS} rounds, seed 0, cgq {cgq.__version__}, "
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"{torch.get_num_threads()} threads of {processor()}"
    )


def processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if "model name" in x), platform.machine())


if __name__ == "__main__":
    if "--memory" in sys.argv:
        measure_memory(sys.argv[-1])
    else:
        main()
