"""A small transformer that predicts the next character."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

# GPT-2's, for every weight; what is added to the stream is scaled down by its number of additions.
SCALE = 0.02


class Attention(nn.Module):
    """Causal attention with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) → the same; each place looks at itself and at those before it."""
        parts = self.into(x).unflatten(2, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Attention and a two-layer network, each added to what it reads, normalised before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.second_norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) → the same."""
        x = x + self.attention(self.first_norm(x))
        hidden = nn.functional.gelu(self.wide(self.second_norm(x)))
        out: Tensor = x + self.narrow(hidden)
        return out


class GPT(nn.Module):
    """Tokens (N, T) → the logits (N, T, vocabulary) of the token after each of them.

    Positions are learned, the norms come before, nothing drops out, and the last layer shares no
    weights with the first. Weights are drawn from torch's global generator.

    Args:
        vocabulary: How many tokens there are.
        length: The most tokens it can see.
        width: Numbers a place.
        layers: Blocks.
        heads: Heads of each block's attention.
    """

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.empty(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self._initialise(layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of each next token."""
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits

    def _initialise(self, layers: int) -> None:
        nn.init.normal_(self.places, std=SCALE)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=SCALE)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            assert isinstance(block, Block)
            for added in (block.attention.out, block.narrow):
                nn.init.normal_(added.weight, std=SCALE / math.sqrt(2 * layers))


def gpt1m(vocabulary: int, length: int) -> nn.Module:
    """0.8 million parameters: for a CPU."""
    return GPT(vocabulary, length, width=128, layers=4, heads=4)


def gpt10m(vocabulary: int, length: int) -> nn.Module:
    """10.8 million parameters: for a GPU."""
    return GPT(vocabulary, length, width=384, layers=6, heads=6)
