"""Muon for a network's hidden matrices, AdamW for all else, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """The weights between hidden layers: of every linear layer but the last, which is the output's.

    >>> model = nn.Sequential(nn.Linear(2, 5), nn.Linear(5, 5), nn.Linear(5, 3))
    >>> [tuple(matrix.shape) for matrix in hidden_matrices(model)]
    [(5, 2), (5, 5)]
    """
    return [module.weight for module in model.modules() if isinstance(module, nn.Linear)][:-1]


class MuonAdamW(Optimizer):
    """Both in one, because an optimizer around another takes one, not two.

    The parts share the groups and the state of the whole. Muon's updates are scaled to the length
    that AdamW's have, so that one rate serves both.
    """

    def __init__(self, model: nn.Module, lr: float, weight_decay: float) -> None:
        matrices = hidden_matrices(model)
        if not matrices:
            raise ValueError(
                "Muon is for hidden linear layers, and this network has none. Choose another."
            )
        held = {id(matrix) for matrix in matrices}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in held]
        self._parts: tuple[Optimizer, ...] = (
            torch.optim.Muon(
                matrices, lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
            ),
            AdamW(rest, lr, weight_decay=weight_decay),
        )
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move by the gradients at hand, or by those that the closure leaves."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss
