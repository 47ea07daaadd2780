"""What Lightning's closure leaves out: the passes of a step, to be repeated as probes.

Lightning's closure runs backward, hooks, clipping and logging each time it is called, returns only
the last micro-batch's share of the loss, and is dropped where a gradient scaler takes the step. So
it is called once, as Lightning means it to be, and probes repeat what went through the strategy's
`training_step`, without gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from cgq.engine.optimizer import SearchOptimizer
from cgq.engine.state import count_skipped
from cgq.evaluation.closure_kinds import Closure
from cgq.evaluation.gradients import StaleGradients
from cgq.hosts.micro_batches import MicroBatches


class RepeatsPasses(SearchOptimizer):
    """An optimizer whose search repeats the passes that Lightning has run for a step."""

    batches: MicroBatches[Any] | None = None  # of the step that Lightning is about to take
    _older_gradients = StaleGradients([])  # gradients older than the batches
    module: LightningModule | None = None
    is_attached = False  # to the strategy, which runs the passes

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """As in a plain loop; the closure is Lightning's."""
        # Unwrapped, because torch adds the step hooks to both classes: they would run twice.
        plain_step = inspect.unwrap(SearchOptimizer.step)
        if self.batches is None:
            if self.module and not self.is_attached and trainer_of(self.module):
                raise RuntimeError(
                    "This optimizer was made before its module had a Trainer, so it does not see "
                    "the passes that its search must repeat. Make it in configure_optimizers."
                )
            return plain_step(self, closure)
        loss = None if closure is None else closure()
        batches, self.batches = self.batches, None
        if not batches:
            return plain_step(self)
        if self.module and self.module.automatic_optimization and not self._has_new_grads():
            return loss  # Lightning left backward out: an epoch for BatchNorm statistics alone
        return batches.step(lambda closure: plain_step(self, closure))

    def open_batches(self, module: LightningModule) -> MicroBatches[Any]:
        """The batches of the next step, before its first pass."""
        parts = module.trainer.accumulate_grad_batches
        self.batches = MicroBatches(module, partial(share_of_loss, parts=parts), self)
        self._older_gradients = StaleGradients(self._params())
        return self.batches

    def roll_back_if_skipped(self) -> None:
        """Undo the passes of a step that a gradient scaler did not ask for, and count it."""
        grads = [param.grad for param in self._params() if param.grad is not None]
        batches, self.batches = self.batches, None
        if not batches or all(bool(grad.isfinite().all()) for grad in grads):
            return  # taken, or skipped by the module's own optimizer_step
        batches.rewind()
        self.last_search = None
        count_skipped(self.param_groups)

    def _has_new_grads(self) -> bool:
        return any(
            param.grad is not None and not self._older_gradients.hold(param)
            for param in self._params()
        )


def trainer_of(module: LightningModule) -> Trainer | None:
    """The Trainer of a module that has one."""
    try:
        return module.trainer
    except RuntimeError:  # it has none yet
        return None


def share_of_loss(output: Any, parts: int) -> Any:
    """The loss in what `training_step` gave, weighed as Lightning does when it accumulates."""
    loss = output.get("loss") if isinstance(output, Mapping) else output
    return None if loss is None else loss / parts
