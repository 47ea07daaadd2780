"""A normalising flow: the density of chains of eight numbers, each bent from the one before."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn

from cgqbench.tasks.task import Task

TRAINED, TESTED = 40_000, 5_000
LINKS = 8


def flow() -> Task:
    """The mean of -ln p, in nats a chain."""
    draw = Generator().manual_seed(8)
    points = chains(torch.randn(TRAINED + TESTED, LINKS, generator=draw))
    train, test = points[:TRAINED], points[TRAINED:]
    return Task(Flow, (train, train), (test, test), loss=negative_log_likelihood, correct=None)


def chains(noise: Tensor) -> Tensor:
    """x₁ = z₁, xₖ₊₁ = 3/2·sin(2xₖ) + exp(tanh xₖ - 1)·zₖ₊₁ of the noise z (N, 8).

    Those with even numbers come first, so that neighbours are in different halves.
    """
    first, *others = noise.unbind(1)
    links = [first]
    for z in others:
        before = links[-1]
        links.append(1.5 * torch.sin(2 * before) + torch.exp(before.tanh() - 1) * z)
    return torch.stack(links[::2] + links[1::2], 1)


class Flow(nn.Module):
    """Chains (N, 8) → where they come to lie, and the logarithm of the volume's growth (N,).

    As in RealNVP: one half is scaled and shifted by functions of the other; then they change roles.
    """

    def __init__(self, layers: int = 6, hidden: int = 64) -> None:
        super().__init__()
        half = LINKS // 2
        self.couplings = nn.ModuleList(
            nn.Sequential(
                *(nn.Linear(half, hidden), nn.SiLU()),
                *(nn.Linear(hidden, hidden), nn.SiLU()),
                nn.Linear(hidden, 2 * half),
            )
            for _ in range(layers)
        )

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """y = x·exp(tanh s) + t, layer by layer; the volume grows by Σ tanh s."""
        still, moved = points.chunk(2, 1)
        growth = torch.zeros_like(points[:, 0])
        for coupling in self.couplings:
            scale, shift = coupling(still).chunk(2, 1)
            scale = scale.tanh()
            still, moved = moved * scale.exp() + shift, still
            growth = growth + scale.sum(1)
        return torch.cat([still, moved], 1), growth


def negative_log_likelihood(output: tuple[Tensor, Tensor], points: Tensor) -> Tensor:
    """-ln p(x) = ½|z|² + ½·d·ln 2π - ln |dz/dx|, the mean over the batch."""
    where, growth = output
    constant = where.shape[1] * math.log(2 * math.pi)
    return (0.5 * (where.square().sum(1) + constant) - growth).mean()
