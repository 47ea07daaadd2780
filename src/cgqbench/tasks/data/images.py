"""Pixels to network inputs, on the device where they lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad


def normalised(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(pixel / 255 − mean) / std for each channel, float32.

    >>> normalised(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8), (0.5,), (0.25,)).item()
    2.0
    """
    inputs = images.to(torch.float32)
    # Channel by channel with plain numbers: a tensor of means would have to travel to the device.
    for channel, (m, s) in enumerate(zip(mean, std, strict=True)):
        inputs[:, channel].mul_(1 / (255 * s)).sub_(m / s)
    return inputs


def cropped_and_flipped(images: Tensor, generator: Generator, padding: int = 4) -> Tensor:
    """Each image shifted by its own random offset over a black border, half of them mirrored.

    Offsets are uniform in −padding … padding, down and across; what comes in from outside is
    black, the pixel 0, so this belongs before `normalised`.

    Args:
        images: (N, C, H, W), of any type.
        generator: The source of chance, on the device of the images.
        padding: Width of the border.

    >>> image = torch.ones(1, 1, 8, 8, dtype=torch.uint8)
    >>> cropped_and_flipped(image, torch.Generator().manual_seed(0)).shape
    torch.Size([1, 1, 8, 8])
    """
    shifted = cropped(images, generator, padding)
    mirrored = torch.randint(2, (len(images), 1, 1, 1), generator=generator, device=images.device)
    return torch.where(mirrored.bool(), shifted.flip(3), shifted)


def cropped(images: Tensor, generator: Generator, padding: int = 4) -> Tensor:
    """The same without the mirror.

    >>> image = torch.arange(9).reshape(1, 1, 3, 3)
    >>> cropped(image, torch.Generator().manual_seed(0), padding=0).equal(image)
    True
    """
    count, _, height, width = images.shape
    device = images.device
    offsets = (2, count)
    top, left = torch.randint(2 * padding + 1, offsets, generator=generator, device=device)
    # A view of every possible crop, (N, C, offsets, offsets, H, W), of which one each is copied.
    crops = pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return crops[torch.arange(count, device=device), :, top, left]
