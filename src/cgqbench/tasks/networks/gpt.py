"""A small transformer that predicts the next character."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

# GPT-2's, for every weight; what is added to the stream is scaled down by its number of additions.
SCALE = 0.02


class Attention(nn.Module):
    """Attention with several heads, causal unless said otherwise."""

    def __init__(self, width: int, heads: int, bias: bool = True, causal: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.into = nn.Linear(width, 3 * width, bias)
        self.out = nn.Linear(width, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) → the same; if causal, a place looks at itself and at those before it."""
        parts = self.into(x).unflatten(2, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Attention and a two-layer network, each added to what it reads, normalised before."""

    def __init__(self, width: int, heads: int, bias: bool = True, causal: bool = True) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width, bias=bias)
        self.attention = Attention(width, heads, bias, causal)
        self.second_norm = nn.LayerNorm(width, bias=bias)
        self.wide = nn.Linear(width, 4 * width, bias)
        self.narrow = nn.Linear(4 * width, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) → the same."""
        x = x + self.attention(self.first_norm(x))
        hidden = nn.functional.gelu(self.wide(self.second_norm(x)))
        out: Tensor = x + self.narrow(hidden)
        return out


class GPT(nn.Module):
    """Tokens (N, T) → the logits (N, T, vocabulary) of the token after each of them.

    Positions are learned, the norms come before, and nothing drops out. Weights are drawn from
    torch's global generator.

    Args:
        vocabulary: How many tokens there are.
        length: The most tokens it can see.
        width: Numbers a place.
        layers: Blocks.
        heads: Heads of each block's attention.
        bias: Whether layers and norms have biases.
        tied: Whether the last layer shares its weights with the first.
    """

    def __init__(
        self,
        vocabulary: int,
        length: int,
        width: int,
        layers: int,
        heads: int,
        bias: bool = True,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.empty(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads, bias) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=bias)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        nn.init.normal_(self.places, std=SCALE)
        small_weights(self, self.blocks)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of each next token."""
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def small_weights(model: nn.Module, blocks: nn.Sequential) -> None:
    """Draw GPT-2's initial weights for a model made of some blocks; biases are zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=SCALE)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for block in blocks:
        assert isinstance(block, Block)
        for added in (block.attention.out, block.narrow):
            nn.init.normal_(added.weight, std=SCALE / math.sqrt(2 * len(blocks)))


def gpt1m(vocabulary: int, length: int) -> nn.Module:
    """0.8 million parameters: for a CPU."""
    return GPT(vocabulary, length, width=128, layers=4, heads=4)


def gpt10m(vocabulary: int, length: int) -> nn.Module:
    """10.8 million parameters: for a GPU."""
    return GPT(vocabulary, length, width=384, layers=6, heads=6)
