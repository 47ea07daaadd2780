"""CGQ in PyTorch Lightning: `return CGQ(self)` in `configure_optimizers`, and nothing else.

Lightning's closure runs backward, hooks, clipping and logging each time it is called, returns only
the last micro-batch's share of the loss, and is dropped where a gradient scaler takes the step. So
it is called once, as Lightning means it to be, and probes repeat what went through the strategy's
`training_step`, without gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import Strategy

import cgq
from cgq.closure import Closure, called_with_backward
from cgq.objective import Leftovers
from cgq.progress import count_skipped
from cgq.step_monitor import StepMonitor
from cgq.unnoticed import unnoticed
from cgq.window import Window

__all__ = ["CGQ", "StepMonitor"]


class CGQ(cgq.CGQ):
    """`cgq.CGQ` for a LightningModule: make it in `configure_optimizers`.

    Automatic and manual optimisation, accumulation, clipping, mixed precision and DDP are
    Lightning's own. Probes are forward passes of `training_step` alone: `self.log` is silent in
    them, and torchmetrics stay as they were.

    Args:
        module: the LightningModule.
        params: parameters or parameter groups; None: all of the module.
        options: as for `cgq.CGQ`.

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

    window: Window[Any] | None = None  # of the step that Lightning is about to take
    _leftovers = Leftovers([])  # gradients older than the window
    _module: LightningModule | None = None
    _watched = False

    def __init__(self, module: LightningModule, params: Any = None, **options: Any) -> None:
        if not isinstance(module, LightningModule):
            raise TypeError(
                f"cgq.lightning.CGQ takes a lightning.pytorch.LightningModule, not "
                f"{type(module).__name__}: write CGQ(self) in its configure_optimizers."
            )
        params = module.parameters() if params is None else params
        super().__init__(params, model=module, **options)
        self._module = module
        if trainer := _trainer_of(module):
            _watch(trainer.strategy)
            self._watched = True

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """As `cgq.CGQ.step`; the closure is Lightning's."""
        # Unwrapped, because torch adds the step hooks to both classes: they would run twice.
        plain_step = inspect.unwrap(cgq.CGQ.step)
        if self.window is None:
            if self._module and not self._watched and _trainer_of(self._module):
                raise RuntimeError(
                    "This optimizer was made before its module had a Trainer, so it does not see "
                    "the passes that its search must repeat. Make it in configure_optimizers."
                )
            return plain_step(self, closure)
        loss = None if closure is None else closure()
        window, self.window = self.window, None
        if not window:
            return plain_step(self)
        if self._module and self._module.automatic_optimization and not self._has_new_grads():
            return loss  # Lightning left backward out: an epoch for BatchNorm statistics alone
        return window.step(lambda closure: plain_step(self, closure))

    def open_window(self, module: LightningModule) -> Window[Any]:
        """The window of the next step, before its first pass."""
        parts = module.trainer.accumulate_grad_batches
        self.window = Window(module, partial(_share_of_loss, parts=parts))
        self._leftovers = Leftovers(self._params())
        return self.window

    def take_back_left_out(self) -> None:
        """Undo the passes of a step that a gradient scaler did not ask for, and count it."""
        grads = [param.grad for param in self._params() if param.grad is not None]
        window, self.window = self.window, None
        if not window or all(bool(grad.isfinite().all()) for grad in grads):
            return  # taken, or left out by the module's own optimizer_step
        window.rewind()
        self.last_search = None
        for group in self.param_groups:
            count_skipped(group, skipped=True)

    def _has_new_grads(self) -> bool:
        return any(
            param.grad is not None and not self._leftovers.hold(param) for param in self._params()
        )


class _Watcher:
    """Stands before a strategy's `training_step` and `optimizer_step`."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._training_step = strategy.training_step
        self._optimizer_step = strategy.optimizer_step

    @property
    def _module(self) -> LightningModule:
        module = self._strategy.lightning_module
        assert module is not None
        return module

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        module, optimizer = self._module, self._strategy.optimizers[0]
        if not (module.automatic_optimization and isinstance(optimizer, CGQ)):
            return self._training_step(*args, **kwargs)
        if any(isinstance(value, Iterator) for value in (*args, *kwargs.values())):
            raise RuntimeError(
                "training_step(dataloader_iter) draws its own batches, so a probe cannot have the "
                "same one again. Let it take the batch: training_step(batch, batch_idx)."
            )
        trainer, window = module.trainer, optimizer.window
        starts = trainer.fit_loop.batch_idx % trainer.accumulate_grad_batches == 0
        if window is None or (window and starts):
            window = optimizer.open_window(module)

        def again() -> Any:  # on the module itself: DDP's wrapper would prepare for a backward
            with unnoticed(module), self._strategy.precision_plugin.train_step_context():
                return module.training_step(*args, **kwargs)

        def first() -> Any:
            output = self._training_step(*args, **kwargs)
            with self._strategy.precision_plugin.train_step_context():
                window.has_come_to(_share_of_loss(output, parts=1))
            return output

        return window.run(first, again)

    def optimizer_step(self, optimizer: Any, closure: Closure, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(optimizer, CGQ):
            return self._optimizer_step(optimizer, closure, *args, **kwargs)
        if not self._module.automatic_optimization:
            closure = self._manual_first_pass(optimizer, closure)
        elif optimizer.window is None:
            optimizer.open_window(self._module)
        try:
            with _clipping_seen(self._module, optimizer):
                output = self._optimizer_step(optimizer, closure, *args, **kwargs)
            optimizer.take_back_left_out()
            return output
        except BaseException:
            if optimizer.window is not None:
                optimizer.window.rewind()
            raise
        finally:
            optimizer.window = None

    def _manual_first_pass(self, optimizer: CGQ, closure: Closure) -> Callable[[], Any]:
        call, takes_backward = called_with_backward(closure)
        params = [param for group in optimizer.param_groups for param in group["params"]]
        window = optimizer.open_window(self._module)

        def again() -> Any:
            with unnoticed(self._module):
                return call(False)

        @torch.enable_grad()
        def first() -> Any:
            given = [param.grad for param in params]
            optimizer.zero_grad()
            loss = window.run(lambda: call(True), again, has_backward=takes_backward)
            has_grads = any(param.grad is not None for param in params)
            if has_grads and not takes_backward:
                raise RuntimeError(
                    "The closure runs backward itself, and so would every probe. Let it only "
                    "return the loss, or write closure(backward) and call "
                    "self.manual_backward(loss) only when asked."
                )
            if loss is None and not has_grads:  # step() without a closure
                for param, grad in zip(params, given, strict=True):
                    param.grad = grad
            elif not takes_backward:
                self._module.manual_backward(loss)
            return loss

        return first


def _trainer_of(module: LightningModule) -> Trainer | None:
    try:
        return module.trainer
    except RuntimeError:  # it has none yet
        return None


def _watch(strategy: Strategy) -> None:
    """Stand before the strategy, once: a Trainer may fit more than one module."""
    if not isinstance(getattr(strategy.training_step, "__self__", None), _Watcher):
        watcher = _Watcher(strategy)
        strategy.training_step = watcher.training_step  # type: ignore[method-assign]
        strategy.optimizer_step = watcher.optimizer_step  # type: ignore[method-assign]


@contextmanager
def _clipping_seen(module: LightningModule, optimizer: CGQ) -> Iterator[None]:
    """Let the optimizer keep the gradients that Lightning's hook for clipping changes."""
    name = "configure_gradient_clipping"
    own = getattr(type(module), name) is not getattr(LightningModule, name)
    if not (own or module.trainer.gradient_clip_val):  # then the hook does nothing
        yield
        return
    clip = module.configure_gradient_clipping

    def seen(*args: Any, **kwargs: Any) -> None:
        with optimizer.clipping():
            clip(*args, **kwargs)

    vars(module)[name] = seen
    try:
        yield
    finally:
        del vars(module)[name]


def _share_of_loss(output: Any, parts: int) -> Any:
    """The loss in what `training_step` gave, weighed as Lightning does when it accumulates."""
    loss = output.get("loss") if isinstance(output, Mapping) else output
    return None if loss is None else loss / parts
