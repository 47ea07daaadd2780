"""An MLP-Mixer for images of 28×28 pixels: layers across places, then across channels."""

from __future__ import annotations

from torch import Tensor, nn

SIDE, CLASSES = 28, 10


class Mixer(nn.Module):
    """Images (N, 1, 28, 28) → the logits of ten classes; torch's own initial weights.

    Args:
        patch: The side of a patch in pixels.
        width: Numbers a patch.
        layers: Blocks.
    """

    def __init__(self, patch: int, width: int, layers: int) -> None:
        super().__init__()
        places = (SIDE // patch) ** 2
        self.patches = nn.Conv2d(1, width, patch, stride=patch)
        self.blocks = nn.Sequential(*(Mixing(places, width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """The logits of the classes, from the mean over all patches."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        logits: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return logits


class Mixing(nn.Module):
    """A two-layer network across the places and one across the channels, each added."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across_places = _two_layers(places, 2 * places)
        self.across_channels = _two_layers(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, places, width) → the same."""
        x = x + self.across_places(self.first_norm(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.across_channels(self.second_norm(x))
        return out


def _two_layers(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
