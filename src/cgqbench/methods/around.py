"""An optimizer that works through another one."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer


class Around(Optimizer):
    """Has the parameter groups and the state of `base`, so that one checkpoint holds both.

    >>> import torch
    >>> base = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> Around(base).param_groups is base.param_groups
    True
    """

    def __init__(self, base: Optimizer) -> None:
        super().__init__(base.param_groups, {})
        self.base, self.state = base, base.state
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        self.base.param_groups, self.base.state = self.param_groups, self.state
