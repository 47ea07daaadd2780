"""The floor of a step: its passes alone, on one batch, without an update."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from cgqbench.training.learner import Learner

FIRST, PROBE = True, False  # with the backward pass, or without
Work = Callable[[], object]


def passes_alone(learner: Learner, kinds: Sequence[bool]) -> Work:
    """These passes, one after the other, on the first batch."""
    inputs, targets = (part.clone() for part in next(iter(learner.feed.epoch(1))))

    def run() -> None:
        closure = learner.closure(inputs, targets)
        for backward in kinds:
            with torch.set_grad_enabled(backward):
                closure(backward=backward)

    return run


def timed(work: Work, device: torch.device, steps: int, turns: int) -> tuple[float, float]:
    """What it takes, and what the host takes for it; the middle of some turns."""
    whole, host = [], []
    for _ in range(turns):
        wait(device)
        began = time.perf_counter()
        for _ in range(steps):
            work()
        host.append((time.perf_counter() - began) / steps)
        wait(device)
        whole.append((time.perf_counter() - began) / steps)
    return statistics.median(whole), statistics.median(host)


def wait(device: torch.device) -> None:
    """For what was launched on it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
