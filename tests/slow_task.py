"""The small task, with epochs that last long enough to be killed in."""

import time

import torch
from small_task import data, model
from torch import Tensor, nn

__all__ = ["data", "loss", "model"]


def loss(output: Tensor, target: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        time.sleep(0.03)
    return nn.functional.cross_entropy(output, target)
