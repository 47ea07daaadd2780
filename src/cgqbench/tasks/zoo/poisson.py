"""A regression with derivatives in its loss: Poisson's equation, solved by its residual."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import mse_loss

from cgqbench.tasks.task import Task

TRAINED, TESTED = 20_000, 2_000
MODES = ((1, 1, 1.0), (1, 2, 0.5), (3, 1, 0.3))
"""(j, k, a): the solution is Σ a·sin(jπx)·sin(kπy), up to a factor."""


def derivatives() -> Task:
    """-Δu = f on the unit square, u = 0 on its border; f is divided by its root mean square."""
    draw = Generator().manual_seed(1)
    points = torch.rand(TRAINED + TESTED, 2, generator=draw)
    train, test = points[:TRAINED], points[TRAINED:]
    return Task(
        NegativeLaplacian,
        (train, source(train)),
        (test, source(test)),
        loss=mse_loss,
        correct=None,
    )


def source(points: Tensor) -> Tensor:
    """f ∝ Σ a·(j² + k²)·sin(jπx)·sin(kπy), of mean square one."""
    x, y = (math.pi * points.double()).unbind(1)
    parts = [(a * (j * j + k * k), j, k) for j, k, a in MODES]
    total = torch.stack([b * torch.sin(j * x) * torch.sin(k * y) for b, j, k in parts]).sum(0)
    mean_square = sum(b * b for b, _, _ in parts) / 4  # of a product of two sines: a quarter
    return (total / math.sqrt(mean_square)).float()


class NegativeLaplacian(nn.Module):
    """Points (N, 2) → -Δu of u = x(1 - x)·y(1 - y)·net(x, y), which is zero on the border."""

    def __init__(self, width: int = 64, hidden: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer in pairwise([2, *[width] * hidden]):
            layers += [nn.Linear(inner, outer), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, points: Tensor) -> Tensor:
        """The derivatives need a graph of their own, whether the loss is to have one or not."""
        with torch.enable_grad():
            at = points.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.solution(at).sum(), at, create_graph=True)
            bends = [
                torch.autograd.grad(slope[:, axis].sum(), at, create_graph=True)[0][:, axis]
                for axis in range(2)
            ]
        return -sum(bends[1:], bends[0])

    def solution(self, points: Tensor) -> Tensor:
        """u itself."""
        x, y = (points * (1 - points)).unbind(1)  # no prod: its derivative makes the host wait
        u: Tensor = x * y * self.net(points).squeeze(1)
        return u
