"""The small task, with epochs that last long enough to be killed in."""

import itertools
import os
import time
from pathlib import Path

import torch
from small_task import data, model
from torch import Tensor, nn

__all__ = ["data", "loss", "model"]

PASSES = 12
"""More than an epoch's 8, less than two epochs: where a process waits to be killed."""
passes = itertools.count(1)


def loss(output: Tensor, target: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        time.sleep(0.02)
        hold = os.environ.get("HOLD")
        while hold and next(passes) > PASSES and Path(hold).exists():
            time.sleep(0.02)
    return nn.functional.cross_entropy(output, target)
