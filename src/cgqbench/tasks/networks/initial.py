"""The point training starts from."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

Network = TypeVar("Network", bound=nn.Module)


def kaiming_normal(model: Network) -> Network:
    """The same model with weights drawn from N(0, 2 / fan_in) and biases of zero.

    The variance keeps the mean square of a signal through linear layers and ReLUs, since a ReLU
    halves it. BatchNorm keeps its scale of one and shift of zero.

    >>> layer = kaiming_normal(nn.Linear(1000, 1000))
    >>> round(1000 * layer.weight.square().mean().item(), 1), layer.bias.abs().max().item()
    (2.0, 0.0)
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
