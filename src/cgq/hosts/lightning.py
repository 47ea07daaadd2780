"""PyTorch Lightning: `return CGQ(self)` in `configure_optimizers`, and nothing else."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule
from torch.optim import Optimizer

import cgq
from cgq.hosts.lightning_passes import RepeatsPasses, trainer_of
from cgq.hosts.lightning_strategy import intercept
from cgq.hosts.step_monitor import StepMonitor

__all__ = ["CGQ", "LineSearch", "StepMonitor"]


class CGQ(RepeatsPasses, cgq.CGQ):
    """`cgq.CGQ` for a LightningModule: make it in `configure_optimizers`.

    Automatic and manual optimisation, accumulation, clipping, mixed precision and DDP are
    Lightning's own. Probes are forward passes of `training_step` alone: `self.log` is silent in
    them, and torchmetrics stay as they were.

    Args:
        module: the LightningModule.
        params: parameters or parameter groups; None: all of the module.
        options: as for `cgq.CGQ`.

    >>> import torch
    >>> class Line(LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.line = torch.nn.Linear(3, 1)
    ...     def training_step(self, batch):
    ...         return self.line(batch).square().mean()
    ...     def configure_optimizers(self):
    ...         return CGQ(self, lr=0.2)
    >>> Line().configure_optimizers().defaults["lr"]
    0.2
    """

    def __init__(self, module: LightningModule, params: Any = None, **options: Any) -> None:
        _refuse_other_modules(module, "CGQ(self)")
        params = module.parameters() if params is None else params
        super().__init__(params, model=module, **options)
        _attach_to(self, module)


class LineSearch(RepeatsPasses, cgq.LineSearch):
    """`cgq.LineSearch` for a LightningModule, as `CGQ` is here.

    Args:
        module: the LightningModule.
        base: the optimizer that gives the direction.
        options: as for `cgq.LineSearch`.

    >>> import torch
    >>> class Line(LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.line = torch.nn.Linear(3, 1)
    ...     def training_step(self, batch):
    ...         return self.line(batch).square().mean()
    ...     def configure_optimizers(self):
    ...         return LineSearch(self, torch.optim.AdamW(self.parameters()))
    >>> Line().configure_optimizers().options.search_prob
    0.1
    """

    def __init__(self, module: LightningModule, base: Optimizer, **options: Any) -> None:
        _refuse_other_modules(module, "LineSearch(self, base)")
        super().__init__(base, model=module, **options)
        _attach_to(self, module)


def _refuse_other_modules(module: object, call: str) -> None:
    if not isinstance(module, LightningModule):
        raise TypeError(
            f"cgq.lightning.{call.partition('(')[0]} takes a lightning.pytorch.LightningModule, "
            f"not {type(module).__name__}: write {call} in its configure_optimizers."
        )


def _attach_to(optimizer: RepeatsPasses, module: LightningModule) -> None:
    optimizer.module = module
    if trainer := trainer_of(module):
        intercept(trainer.strategy)
        optimizer.is_attached = True
