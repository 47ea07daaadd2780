"""The networks by name, each at its initial point: the paper's for images, ours for text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from cgqbench.tasks.networks.densenet import densenet100
from cgqbench.tasks.networks.gpt import Block, gpt1m, gpt10m
from cgqbench.tasks.networks.initial import kaiming_normal
from cgqbench.tasks.networks.mlp import mlp
from cgqbench.tasks.networks.resnet import Bottleneck, resnet
from cgqbench.tasks.networks.vgg import vgg16

NETWORKS: dict[str, Callable[[tuple[int, int, int], int], nn.Module]] = {
    "mlp": mlp,
    "vgg16": vgg16,
    **{f"resnet{depth}": partial(resnet, depth) for depth in (20, 110, 164)},
    "densenet100": densenet100,
}
"""(channels, height, width) of an image and the number of classes → a network."""

LANGUAGE_MODELS: dict[str, Callable[[int, int], nn.Module]] = {"gpt1m": gpt1m, "gpt10m": gpt10m}
"""The number of tokens there are and of those to see at once → a network, weights and all."""


def network(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A network for images of `shape` (channels, height, width), its weights Kaiming-normal.

    They are drawn from torch's global generator: seed it for the same initial point.

    >>> model = network("mlp", (1, 28, 28), 10)
    >>> sum(parameter.numel() for parameter in model.parameters())
    795010
    """
    if name not in NETWORKS:
        raise ValueError(
            f"No network for images is called {name!r}. Choose one of {', '.join(NETWORKS)}."
        )
    return kaiming_normal(NETWORKS[name](shape, classes))


def language_model(name: str, vocabulary: int, length: int) -> nn.Module:
    """A network that reads up to `length` tokens, of `vocabulary` kinds, and predicts each next.

    Its weights are drawn from torch's global generator: seed it for the same initial point.

    >>> model = language_model("gpt1m", 97, 128)
    >>> sum(parameter.numel() for parameter in model.parameters())
    834560
    """
    if name not in LANGUAGE_MODELS:
        raise ValueError(
            f"No network for text is called {name!r}. Choose one of {', '.join(LANGUAGE_MODELS)}."
        )
    return LANGUAGE_MODELS[name](vocabulary, length)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of which a network has many of few shapes; none of them drops anything out.

    >>> len(repeated_blocks(network("resnet110", (3, 32, 32), 10)))
    36
    """
    return [module for module in model.modules() if isinstance(module, Bottleneck | Block)]
