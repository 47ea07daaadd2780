"""A small transformer for images, which it reads patch by patch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cgqbench.tasks.networks.gpt import SCALE, Block, small_weights

CHANNELS, SIDE, CLASSES = 3, 32, 10


class ViT(nn.Module):
    """Images (N, 3, 32, 32) → the logits of ten classes, from the mean over all patches.

    Args:
        patch: The side of a patch in pixels.
        width: Numbers a patch.
        layers: Blocks.
        heads: Heads of each block's attention.
    """

    def __init__(self, patch: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, width, patch, stride=patch)
        self.places = nn.Parameter(torch.empty((SIDE // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)
        nn.init.normal_(self.places, std=SCALE)
        small_weights(self, self.blocks)

    def forward(self, images: Tensor) -> Tensor:
        """The logits of the classes."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        logits: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return logits
