"""The paper's networks by name, each at its initial point."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from cgqbench.networks.densenet import densenet100
from cgqbench.networks.initial import kaiming_normal
from cgqbench.networks.mlp import mlp
from cgqbench.networks.resnet import Bottleneck, resnet20, resnet110, resnet164
from cgqbench.networks.vgg import vgg16

NETWORKS: dict[str, Callable[[tuple[int, int, int], int], nn.Module]] = {
    "mlp": mlp,
    "vgg16": vgg16,
    "resnet20": resnet20,
    "resnet110": resnet110,
    "resnet164": resnet164,
    "densenet100": densenet100,
}
"""(channels, height, width) of an image and the number of classes → a network."""


def network(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A network for images of `shape` (channels, height, width), its weights Kaiming-normal.

    They are drawn from torch's global generator: seed it for the same initial point.

    >>> model = network("mlp", (1, 28, 28), 10)
    >>> sum(parameter.numel() for parameter in model.parameters())
    795010
    """
    if name not in NETWORKS:
        raise ValueError(f"No network is called {name!r}. Choose one of {', '.join(NETWORKS)}.")
    return kaiming_normal(NETWORKS[name](shape, classes))


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of which a network has many of few shapes; none of them drops anything out.

    >>> len(repeated_blocks(network("resnet110", (3, 32, 32), 10)))
    36
    """
    return [module for module in model.modules() if isinstance(module, Bottleneck)]
