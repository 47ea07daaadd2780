"""Networks that draw what they were shown: a variational one, and a deep one in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss, relu

from cgqbench.tasks.data import Split, load
from cgqbench.tasks.task import Loss, Task

PIXELS, TESTED = 784, 2_000
DEPTHS = (784, 256, 64, 16, 64, 256, 784)


def vae() -> Task:
    """The network and the summed loss of PyTorch's example."""
    return _drawing(VAE, negative_elbo, torch.float32, summed=True)


def autoencoder() -> Task:
    """Seven layers of neurons, all arithmetic in float64."""
    return _drawing(deep, squared_error, torch.float64)


class VAE(nn.Module):
    """Pixels → the logits of the pixels drawn, and the mean and log-variance of the code.

    The code is drawn from torch's global generator, also when the network is tested.
    """

    def __init__(self, hidden: int = 400, code: int = 20) -> None:
        super().__init__()
        self.into = nn.Linear(PIXELS, hidden)
        self.mean = nn.Linear(hidden, code)
        self.log_variance = nn.Linear(hidden, code)
        self.back = nn.Linear(code, hidden)
        self.out = nn.Linear(hidden, PIXELS)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All that the loss needs."""
        hidden = relu(self.into(pixels))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.out(relu(self.back(code))), mean, log_variance


def negative_elbo(output: tuple[Tensor, Tensor, Tensor], images: Tensor) -> Tensor:
    """Cross-entropy of the pixels + KL(N(μ, σ²) | N(0, 1)), both summed over the batch.

    KL = -½ Σ (1 + ln σ² - μ² - σ²)
    """
    logits, mean, log_variance = output
    drawn = binary_cross_entropy_with_logits(logits, brightness(images), reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return drawn + divergence


def deep() -> nn.Module:
    """SiLU between the layers; the code has 16 numbers."""
    layers: list[nn.Module] = []
    for inner, outer in pairwise(DEPTHS):
        layers += [nn.Linear(inner, outer), nn.SiLU()]
    return nn.Sequential(*layers[:-1]).double()


def squared_error(output: Tensor, images: Tensor) -> Tensor:
    """The mean over all pixels."""
    return mse_loss(output, brightness(images, output.dtype))


def brightness(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Pixels from 0 to 1.

    >>> brightness(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist()
    [0.0, 0.20000000298023224, 1.0]
    """
    return images.to(dtype) / 255


def _drawing(
    model: Callable[[], nn.Module], loss: Loss, dtype: torch.dtype, summed: bool = False
) -> Task:
    data = load("mnist")
    train, test = _flat(data.train), _flat(data.test)[:TESTED]
    return Task(
        model,
        (train, train),
        (test, test),
        loss=loss,
        correct=None,
        summed=summed,
        prepared=partial(brightness, dtype=dtype),
    )


def _flat(split: Split) -> Tensor:
    return split.images.flatten(1)
