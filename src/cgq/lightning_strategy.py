"""Lightning's strategies, watched: each pass is noted, and each step can repeat it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import Strategy

from cgq.closure import Closure, called_with_backward
from cgq.lightning_passes import SeesPasses, share_of_loss
from cgq.unnoticed import unnoticed


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
        if not (module.automatic_optimization and isinstance(optimizer, SeesPasses)):
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
                window.has_come_to(share_of_loss(output, parts=1))
            return output

        return window.run(first, again)

    def optimizer_step(self, optimizer: Any, closure: Closure, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(optimizer, SeesPasses):
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

    def _manual_first_pass(self, optimizer: SeesPasses, closure: Closure) -> Callable[[], Any]:
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


def watch(strategy: Strategy) -> None:
    """Stand before the strategy, once: a Trainer may fit more than one module."""
    if not isinstance(getattr(strategy.training_step, "__self__", None), _Watcher):
        watcher = _Watcher(strategy)
        strategy.training_step = watcher.training_step  # type: ignore[method-assign]
        strategy.optimizer_step = watcher.optimizer_step  # type: ignore[method-assign]


@contextmanager
def _clipping_seen(module: LightningModule, optimizer: SeesPasses) -> Iterator[None]:
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
