"""sCGQ with and without its watch, on networks where the average step diverges: 5 seeds.

    python benchmarks/watched.py

The loss is the mean of the last 20 batches; beside it the share of batches that were searched.
`unwatched` is the paper's sCGQ, `watched` the default, and `on a device` the same on the way of an
accelerator, where the host hears of a loss two steps later.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from where import measured_on

import cgq.rules.scalars
from cgq import CGQ

SEEDS = 5
Batches = list[tuple[Tensor, Tensor]]


class Task(NamedTuple):
    model: nn.Module
    batches: Batches
    before: Callable[[int], object] = lambda step: None  # each step


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.last = nn.GRU(4, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.recurrent(x)[0])


def layer_norm() -> Task:
    """256 points of a sum of sines, full batch."""
    model = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.LayerNorm(50), nn.Linear(50, 1))
    inputs = torch.randn(256, 10)
    return Task(model, [(inputs, inputs.sin().sum(1, keepdim=True))] * 300)


def mlp() -> Task:
    """Four layers of ReLU, squared error, batch 64."""
    widths = (10, 64, 64, 64)
    hidden = [[nn.Linear(*pair), nn.ReLU()] for pair in pairwise(widths)]
    model = nn.Sequential(*(part for layer in hidden for part in layer), nn.Linear(64, 1))
    inputs = torch.randn(2048, 10)
    targets = inputs.sin().sum(1, keepdim=True)
    rows = [torch.randint(2048, (64,)) for _ in range(800)]
    return Task(model, [(inputs[row], targets[row]) for row in rows])


def gru() -> Task:
    """Sums over the steps of random sequences."""
    sequences = [torch.randn(32, 20, 4) for _ in range(500)]
    return Task(Recurrent(), [(x, x.sum(2, keepdim=True).cumsum(1) / 3.0) for x in sequences])


def unfrozen() -> Task:
    """The MLP, whose first layer is frozen until half way."""
    model, batches, _ = mlp()
    first = next(model.children())
    first.requires_grad_(False)
    return Task(model, batches, lambda step: step == 400 and first.requires_grad_(True))


TASKS = (layer_norm, mlp, gru, unfrozen)
SCGQ = {"search_prob": 0.1, "smoothing": 0.5}
METHODS: dict[str, dict[str, Any]] = {
    "CGQ": {},
    "sCGQ, unwatched": {**SCGQ, "watched": False},
    "sCGQ, watched": SCGQ,
    "sCGQ, on a device": SCGQ,
}


def trained(make: Callable[[], Task], seed: int, options: dict[str, Any]) -> str:
    torch.manual_seed(seed)
    model, batches, before = make()
    optimizer, losses, searches = CGQ([{"params": list(model.parameters()), **options}]), [], 0
    for step, (x, y) in enumerate(batches):
        before(step)
        losses.append(float(optimizer.step(lambda: mse_loss(model(x), y))))  # noqa: B023
        searches += optimizer.last_search is not None
    return f"{sum(losses[-20:]) / 20:.3g} ({searches / len(batches):.0%})"


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for make in TASKS:
        print(f"{make.__name__}: {make.__doc__}")
        for name, options in METHODS.items():
            on_host = not name.endswith("on a device")
            with mock.patch.object(cgq.rules.scalars, "is_host", return_value=on_host):
                seeds = [trained(make, seed, options) for seed in range(SEEDS)]
            print(f"  {name:18}", *(f"{seed:>16}" for seed in seeds), flush=True)
    print(measured_on(torch.device("cpu")))


if __name__ == "__main__":
    main()
