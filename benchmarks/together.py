"""Why several networks at once gain little on a GPU: how full its kernels make it.

The kernels of a training step, captured as a graph, by how many blocks each has for a
multiprocessor: below 1 there are multiprocessors that do nothing. Then the step of one network
alone, of several side by side on streams of their own, and of several as one, by `torch.func.vmap`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from cifar_shapes import SHAPE
from floor import Work
from gpu import BATCH
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call, replace_all_batch_norm_modules_, stack_module_state, vmap
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from where import measured_on

from cgqbench.tasks.networks import network
from cgqbench.training.arithmetic import Arithmetic

NETWORKS = ("vgg16", "resnet110")
TOGETHER = 6
WARM_UP, STEPS, TURNS = 3, 20, 5
BOUNDS = (0.25, 0.5, 1.0, 4.0)  # blocks of a kernel for each multiprocessor


def made(name: str, device: torch.device, *, channels_last: bool) -> nn.Module:
    model = Arithmetic(device).placed(network(name, SHAPE, 10), channels_last=channels_last)
    replace_all_batch_norm_modules_(model)  # running statistics are no matter of speed
    return model


def batch(device: torch.device, *networks: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(*networks, BATCH, *SHAPE, device=device)
    return inputs, torch.randint(0, 10, (*networks, BATCH), device=device)


def step_of(params: list[Tensor], loss: Callable[[], Tensor]) -> Work:
    optimizer = torch.optim.SGD(params, lr=1e-4, momentum=0.9, foreach=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def alone(name: str, device: torch.device) -> Work:
    """A step of one network."""
    model, (inputs, targets) = made(name, device, channels_last=True), batch(device)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    return step_of(list(model.parameters()), lambda: cross_entropy(model(inputs), targets))


def as_one(name: str, device: torch.device) -> Work:
    """A step of several networks whose parameters are stacked."""
    # vmap knows no BatchNorm on channels_last.
    models = [made(name, device, channels_last=False) for _ in range(TOGETHER)]
    params, buffers = stack_module_state(models)
    inputs, targets = batch(device, TOGETHER)
    skeleton = models[0]

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(skeleton, (params, buffers), (x,)), y)

    losses = vmap(loss, randomness="different")
    return step_of(list(params.values()), lambda: losses(params, inputs, targets).sum())


class Captured:
    """A step as a graph."""

    def __init__(self, step: Work) -> None:
        self._step = step  # which owns the memory that the graph works on
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        self.replay = graph.replay


def seconds(graphs: list[Captured]) -> float:
    """For a step of each, on streams of their own."""
    streams = [torch.cuda.Stream() for _ in graphs]  # type: ignore[no-untyped-call]
    taken = []
    for _ in range(TURNS + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(STEPS):
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - began) / STEPS)
    return statistics.median(taken[1:])


def kernels(graph: Captured) -> list[tuple[float, float]]:
    """Of each kernel of a replay its µs, and its blocks for each multiprocessor."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        graph.replay()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as name:
        trace = Path(name) / "trace.json"
        seen.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    found = [event for event in events if event.get("cat") == "kernel"]
    return [(float(each["dur"]), float(each["args"]["blocks per SM"])) for each in found]


def speeds(name: str, device: torch.device) -> Table:
    graphs = [Captured(alone(name, device)) for _ in range(TOGETHER)]
    one = seconds(graphs[:1])
    several = seconds(graphs)
    stacked = seconds([Captured(as_one(name, device))])
    table = Table("networks", "how", "ms", "networks' steps, ÷ one alone")
    table.add_row("1", "alone", f"{1e3 * one:.2f}", "1.00")
    for how, taken in (("side by side, on streams", several), ("as one, by vmap", stacked)):
        table.add_row(str(TOGETHER), how, f"{1e3 * taken:.2f}", f"{TOGETHER * one / taken:.2f}")
    return table


def fullness(name: str, device: torch.device) -> Table:
    found = kernels(Captured(alone(name, device)))
    whole = sum(taken for taken, _ in found)
    table = Table("blocks for a multiprocessor", "kernels", "µs", "share of the time", "µs each")
    bounds = (0.0, *BOUNDS, float("inf"))
    for least, most in pairwise(bounds):
        times = [taken for taken, blocks in found if least <= blocks < most]
        if times:
            row = f"{sum(times):.0f}", f"{sum(times) / whole:.0%}", f"{statistics.mean(times):.1f}"
            table.add_row(f"{least:g} to {most:g}", str(len(times)), *row)
    table.add_row("all", str(len(found)), f"{whole:.0f}", "", f"{whole / len(found):.1f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    names = parser.parse_args().network
    if not torch.cuda.is_available():
        sys.exit("There is no CUDA device here.")
    device, console = torch.device("cuda", 0), Console(width=110)
    Arithmetic(device).set_up(1)
    where = f"{measured_on(device)}. Batch {BATCH}, TF32. python benchmarks/together.py"
    console.print(where, highlight=False)
    for name in names:
        console.print(name)
        console.print(fullness(name, device))
        console.print(speeds(name, device))


if __name__ == "__main__":
    main()
