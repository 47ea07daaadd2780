"""A denoising diffusion model: a small network tells the noise from a digit of 14×14 pixels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, mse_loss, silu

from cgqbench.tasks.data import load
from cgqbench.tasks.task import Task
from cgqbench.tasks.zoo.images import first

PIXELS, TESTED = 14 * 14, 2_000
TONES = 8
"""Sines and cosines of the time, by which the network knows it."""


def diffusion() -> Task:
    """MNIST in half its size."""
    data = load("mnist")
    train, test = data.train.images, first(data.test, TESTED).images
    return Task(
        Denoiser, (train, train), (test, test), loss=noise_missed, correct=None, prepared=halved
    )


def halved(images: Tensor) -> Tensor:
    """Half the size, from -1 to 1.

    >>> halved(torch.tensor([[[[0, 255], [255, 0]]]], dtype=torch.uint8)).item()
    0.0
    """
    return avg_pool2d(images.float(), 2) / 127.5 - 1


class Denoiser(nn.Module):
    """Images (N, 1, 14, 14) → the noise ε that was mixed into them, and what it is taken for.

    cos(tπ/2)·x + sin(tπ/2)·ε is shown. Time and noise are drawn from torch's global generator,
    also when the network is tested.
    """

    def __init__(self, width: int = 256, layers: int = 3) -> None:
        super().__init__()
        self.into = nn.Linear(PIXELS, width)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(layers))
        self.out = nn.Linear(width, PIXELS)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The noise found and the noise that was there."""
        time = torch.rand(len(images), device=images.device)
        noise = torch.randn_like(images)
        return self.found(noisy(images, noise, time), time), noise

    def found(self, images: Tensor, time: Tensor) -> Tensor:
        """The noise in images of known times."""
        clock = tones(time)
        x = self.into(images.flatten(1))
        for block in self.blocks:
            x = block(x, clock)
        out: Tensor = self.out(x)
        return out.reshape(images.shape)


class Residual(nn.Module):
    """Two layers added to what they read; the time adds a number to each hidden one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, 2 * width)
        self.time = nn.Linear(2 * TONES, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, clock: Tensor) -> Tensor:
        """(N, width) → the same."""
        out: Tensor = x + self.second(silu(self.first(self.norm(x)) + self.time(clock)))
        return out


def noisy(images: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    """From the image at time 0 to nothing but noise at time 1; the squares of both shares sum to 1.

    >>> noisy(torch.ones(2, 1, 1, 1), torch.zeros(2, 1, 1, 1), torch.tensor([0.0, 1.0])).flatten()
    tensor([ 1.0000e+00, -4.3711e-08])
    """
    angle = (math.pi / 2) * time[:, None, None, None]
    return angle.cos() * images + angle.sin() * noise


def tones(time: Tensor) -> Tensor:
    """sin and cos of kπt, (N, 2·tones)."""
    angles = math.pi * torch.arange(1, TONES + 1, device=time.device) * time[:, None]
    return torch.cat([angles.sin(), angles.cos()], 1)


def noise_missed(output: tuple[Tensor, Tensor], images: Tensor) -> Tensor:
    """The mean squared error of the noise; who finds none is at one."""
    return mse_loss(*output)
