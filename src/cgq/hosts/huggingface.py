"""Hugging Face: a Trainer whose every optimizer step is a line search.

The Trainer runs forward and backward itself and then calls `optimizer.step()` bare. `CGQTrainer`
notes the micro-batches it has run since the last step, and hands the optimizer a closure over them:
its first evaluation is the one the Trainer has made, and a probe repeats the forward passes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback, TrainingArguments

from cgq.cgq import CGQ
from cgq.engine.optimizer import SearchOptimizer
from cgq.engine.state import count_skipped
from cgq.hosts.inputs import Inputs
from cgq.hosts.micro_batches import MicroBatches
from cgq.hosts.patching import patched

ADAMS_RATE = next(f.default for f in fields(TrainingArguments) if f.name == "learning_rate")


class CGQTrainer(Trainer):
    """`transformers.Trainer` with CGQ: the same arguments, the same loop, no learning rate.

    The optimizer is `CGQ` with its own defaults and the Trainer's groups for weight decay. Options
    go into the Trainer's own argument, `optimizer_cls_and_kwargs=(CGQ, {"lr": 0.1})`; an optimizer
    of yours, or a `LineSearch`, into `optimizers=(CGQ(model.parameters()), None)`. Schedules and
    warm-up act on the ceiling `lr`. `args.learning_rate`, a rate for Adam, is not used.

    Accumulation, token-weighted losses, clipping, bf16, checkpoints and distributed runs are the
    Trainer's own. What clipping does to the gradient does not spoil the slope.

    It serves as a mixin too: `class Mine(CGQTrainer, Seq2SeqTrainer): ...`.

    >>> import tempfile, torch
    >>> class Model(torch.nn.Linear):
    ...     def forward(self, x, labels):
    ...         return {"loss": torch.nn.functional.mse_loss(super().forward(x)[:, 0], labels)}
    >>> data = [{"x": torch.randn(2), "labels": torch.randn(())} for _ in range(8)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     args = TrainingArguments(folder, max_steps=2, use_cpu=True, disable_tqdm=True)
    ...     trainer = CGQTrainer(Model(2, 1), args, train_dataset=data)
    ...     result = trainer.train()  # doctest: +ELLIPSIS
    {'train_runtime': ...}
    >>> trainer.optimizer.optimizer.last_search.accepted
    True
    """

    _batches: MicroBatches[Any] | None = None  # of the step the Trainer is about to take
    _is_complete = False
    _driven: SearchOptimizer | None = None
    _probing = False
    _calls_super = False  # in a training_step of its own, as far as seen

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Make the optimizer unless there is one, and give its steps a closure."""
        if self.optimizer is None and self.optimizer_cls_and_kwargs is None:
            if self.args.learning_rate != ADAMS_RATE:
                warnings.warn(UNUSED_RATE.format(self.args.learning_rate), stacklevel=2)
            self.optimizer_cls_and_kwargs = CGQ, {}
        optimizer: Optimizer = super().create_optimizer(model)
        inner = _without_wrappers(optimizer)
        if not isinstance(inner, SearchOptimizer):
            raise TypeError(
                f"CGQTrainer searches along the steps of CGQ, but its optimizer is "
                f"{type(inner).__name__}. Give it a CGQ or none, put cgq.LineSearch around yours, "
                "or use transformers.Trainer."
            )
        self._batches = None
        if inner is not self._driven:
            self._driven = inner
            inner.register_step_pre_hook(self._with_closure)
            self.pop_callback(_AfterStep)
            self.add_callback(_AfterStep(self._roll_back_if_skipped))
        return optimizer

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Run forward and backward on a micro-batch, and note how to run it again."""
        if self._batches is None or self._is_complete:
            self._batches = MicroBatches(model, lambda loss: loss, self._driven)
        run, given = super().training_step, Inputs(model, inputs, *args, **kwargs)
        first = partial(self._noted, partial(run, model, inputs, *args, **kwargs), self._batches)
        again = partial(self._forward_only, partial(given.given_to, run))
        loss: Tensor = self._batches.run(first, again, has_backward=True)
        if self._driven:
            given.tell_if_written(self._driven)
        self._calls_super = True
        self._is_complete = self.accelerator.sync_gradients
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, but not what a probe says."""
        if not self._probing:
            super().log(logs, *args, **kwargs)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        assert self._driven is not None
        # Before the gradients are kept, and not again: clipping would begin with it.
        self.accelerator.unscale_gradients()
        done = patched(self.accelerator, "unscale_gradients", lambda *args: None)
        with done, self._driven.clipping():
            return super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]

    def _with_closure(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """The arguments of step(), with a closure if this trainer has run its micro-batches."""
        batches, self._batches = self._batches, None
        if not batches:
            self._tell_of_missing_passes()
            return None
        return batches.step(lambda closure: ((optimizer, closure), {}))

    def _tell_of_missing_passes(self) -> None:
        own = type(self).training_step is not CGQTrainer.training_step
        if self.is_in_train and own and not self._calls_super:
            self._calls_super = True  # said once
            warnings.warn(NO_SUPER.format(type(self).__name__), stacklevel=2)

    def _roll_back_if_skipped(self) -> None:
        """The gradient scaler saw an overflow, so the optimizer was not asked to step."""
        if self._batches and self._driven and self.accelerator.optimizer_step_was_skipped:
            self._batches.rewind()
            self._batches, self._driven.last_search = None, None
            count_skipped(self._driven.param_groups)

    def _noted(self, run: Callable[[], Tensor], batches: MicroBatches[Any]) -> Tensor:
        backward = self.accelerator.backward

        def noting(loss: Tensor, **kwargs: Any) -> None:
            with self.accelerator.autocast():  # its region has ended, and a compiled graph hides it
                batches.has_come_to(loss)
            backward(loss, **kwargs)

        with patched(self.accelerator, "backward", noting):
            return run()

    def _forward_only(self, run: Callable[[], Tensor]) -> Tensor:
        self._probing = True
        try:
            with patched(self.accelerator, "backward", lambda loss, **kwargs: None):
                return run()
        finally:
            self._probing = False


class _AfterStep(TrainerCallback):
    """Calls when the Trainer has asked for an optimizer step, whether or not it was taken."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._call()


def _without_wrappers(optimizer: Any) -> Any:
    while not isinstance(optimizer, SearchOptimizer) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


NO_SUPER = (
    "{0}.training_step does not call super().training_step(), so the line search does not see the "
    "loss, and no step is searched: all have one length. Let it call super().training_step(model, "
    "inputs, num_items_in_batch), or override compute_loss instead."
)
UNUSED_RATE = (
    "args.learning_rate={} is not used: CGQ measures its steps. To set their ceiling, pass "
    'optimizer_cls_and_kwargs=(CGQ, {{"lr": ...}}).'
)
