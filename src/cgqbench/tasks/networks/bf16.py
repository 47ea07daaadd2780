"""Mixed precision inside a network: weights in float32, most of its arithmetic in bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Bf16(nn.Module):
    """A network under autocast; what it returns is float32, so that a loss is rounded no further.

    >>> Bf16(nn.Linear(2, 2))(torch.zeros(1, 2)).dtype
    torch.float32
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """The network's answer."""
        # Without a cache: it would hold weights of the point before.
        with torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False):
            output: Tensor = self.network(inputs)
        return output.float()
