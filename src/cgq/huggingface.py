"""Hugging Face: a Trainer whose every optimizer step is a line search.

The Trainer runs forward and backward itself and then calls `optimizer.step()` bare. `CGQTrainer`
notes the micro-batches it has run since the last step, and hands the optimizer a closure over them:
its first evaluation is the one the Trainer has made, and a probe repeats the forward passes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import Trainer, TrainingArguments

from cgq.optimizer import CGQ
from cgq.window import Window

ADAMS_RATE = next(f.default for f in fields(TrainingArguments) if f.name == "learning_rate")


class CGQTrainer(Trainer):
    """`transformers.Trainer` with CGQ: the same arguments, the same loop, no learning rate.

    The optimizer is `CGQ` with its own defaults and the Trainer's groups for weight decay. Options
    go into the Trainer's own argument, `optimizer_cls_and_kwargs=(CGQ, {"lr": 0.1})`; an optimizer
    of yours into `optimizers=(CGQ(model.parameters()), None)`. Schedules and warm-up act on the
    ceiling `lr`. `args.learning_rate`, a rate for Adam, is not used.

    Accumulation, token-weighted losses, clipping, bf16, checkpoints and distributed runs are the
    Trainer's own. A clipped gradient is that of a loss scaled down, so that is the loss searched.

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

    _window: Window[Any] | None = None  # of the step the Trainer is about to take
    _is_complete = False
    _clipped: Tensor | float = 1.0  # to which share of its length the gradient was
    _driven: CGQ | None = None
    _probing = False

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Make the optimizer unless there is one, and give its steps a closure."""
        if self.optimizer is None and self.optimizer_cls_and_kwargs is None:
            if self.args.learning_rate != ADAMS_RATE:
                warnings.warn(UNUSED_RATE.format(self.args.learning_rate), stacklevel=2)
            self.optimizer_cls_and_kwargs = CGQ, {}
        optimizer: Optimizer = super().create_optimizer(model)
        inner = _without_wrappers(optimizer)
        if not isinstance(inner, CGQ):
            raise TypeError(
                f"CGQTrainer searches along the steps of CGQ, but its optimizer is "
                f"{type(inner).__name__}. Give it a CGQ or none, or use transformers.Trainer."
            )
        self._window = None
        if inner is not self._driven:
            self._driven = inner
            inner.register_step_pre_hook(self._with_closure)
            inner.model = self.model  # the closure's first call runs no module to be found
        return optimizer

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Run forward and backward on a micro-batch, and note how to run it again."""
        if self._window is None or self._is_complete:
            self._window, self._clipped = Window(model, lambda loss: loss), 1.0
        run = partial(super().training_step, model, inputs, *args, **kwargs)
        loss: Tensor = self._window.run(run, partial(self._forward_only, run))
        self._is_complete = self.accelerator.sync_gradients
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, but not what a probe says."""
        if not self._probing:
            super().log(logs, *args, **kwargs)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        norm = super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]
        # The very factor by which torch.nn.utils.clip_grad_norm_ has multiplied.
        self._clipped = torch.clamp(self.args.max_grad_norm / (norm + 1e-6), max=1.0)
        return norm

    def _with_closure(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """The arguments of step(), with a closure if this trainer has run its micro-batches."""
        window, self._window, clipped = self._window, None, self._clipped
        if not window:
            return None
        return window.step(
            lambda loss: ((optimizer, lambda backward: loss(backward) * clipped), {})
        )

    def _forward_only(self, run: Callable[[], Tensor]) -> Tensor:
        self._probing = True
        try:
            with _without_backward(self.accelerator):
                return run()
        finally:
            self._probing = False


@contextmanager
def _without_backward(accelerator: object) -> Iterator[None]:
    """Let the host's training step stop at the loss, with whatever it does to compute that."""
    vars(accelerator)["backward"] = lambda loss, **kwargs: None
    try:
        yield
    finally:
        del vars(accelerator)["backward"]


def _without_wrappers(optimizer: Any) -> Any:
    while not isinstance(optimizer, CGQ) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


UNUSED_RATE = (
    "args.learning_rate={} is not used: CGQ measures its steps. To set their ceiling, pass "
    'optimizer_cls_and_kwargs=(CGQ, {{"lr": ...}}).'
)
