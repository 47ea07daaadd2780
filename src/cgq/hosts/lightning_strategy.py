"""Lightning's strategies, intercepted: each pass is noted, and each step can repeat it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import Strategy

from cgq.evaluation.buffer_sync import share_buffers
from cgq.evaluation.closure_kinds import Closure, called_with_backward
from cgq.hosts.inputs import Inputs
from cgq.hosts.lightning_passes import RepeatsPasses, share_of_loss
from cgq.hosts.patching import patched
from cgq.hosts.silent import silent


class _Interceptor:
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
        if not (module.automatic_optimization and isinstance(optimizer, RepeatsPasses)):
            return self._training_step(*args, **kwargs)
        if any(isinstance(value, Iterator) for value in (*args, *kwargs.values())):
            raise RuntimeError(
                "training_step(dataloader_iter) draws its own batches, so a probe cannot have the "
                "same one again. Let it take the batch: training_step(batch, batch_idx)."
            )
        trainer, batches = module.trainer, optimizer.batches
        starts = trainer.fit_loop.batch_idx % trainer.accumulate_grad_batches == 0
        if batches is None or (batches and starts):
            batches = optimizer.open_batches(module)
        inputs = Inputs(*args, **kwargs)
        share_buffers(self._strategy.model)  # so that probes see what the first pass will

        def again() -> Any:  # on the module itself: DDP's wrapper would prepare for a backward
            with silent(module), self._strategy.precision_plugin.train_step_context():
                return inputs.given_to(module.training_step)

        def first() -> Any:
            output = self._training_step(*args, **kwargs)
            inputs.tell_if_written(optimizer)
            with self._strategy.precision_plugin.train_step_context():
                batches.has_come_to(share_of_loss(output, parts=1))
            return output

        return batches.run(first, again)

    def optimizer_step(self, optimizer: Any, closure: Closure, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(optimizer, RepeatsPasses):
            return self._optimizer_step(optimizer, closure, *args, **kwargs)
        if not self._module.automatic_optimization:
            closure = self._manual_first_pass(optimizer, closure)
        elif optimizer.batches is None:
            optimizer.open_batches(self._module)
        try:
            with _clipping_seen(self._module, optimizer):
                output = self._optimizer_step(optimizer, closure, *args, **kwargs)
            optimizer.roll_back_if_skipped()
            return output
        except BaseException:
            if optimizer.batches is not None:
                optimizer.batches.rewind()
            raise
        finally:
            optimizer.batches = None

    def _manual_first_pass(self, optimizer: RepeatsPasses, closure: Closure) -> Callable[[], Any]:
        call, takes_backward = called_with_backward(closure)
        params = [param for group in optimizer.param_groups for param in group["params"]]
        batches = optimizer.open_batches(self._module)

        def again() -> Any:
            with silent(self._module):
                return call(False)

        @torch.enable_grad()
        def first() -> Any:
            given = [param.grad for param in params]
            optimizer.zero_grad()
            loss = batches.run(lambda: call(True), again, has_backward=takes_backward)
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


def intercept(strategy: Strategy) -> None:
    """Stand before the strategy, once: a Trainer may fit more than one module."""
    if not isinstance(getattr(strategy.training_step, "__self__", None), _Interceptor):
        interceptor = _Interceptor(strategy)
        strategy.training_step = interceptor.training_step  # type: ignore[method-assign]
        strategy.optimizer_step = interceptor.optimizer_step  # type: ignore[method-assign]


@contextmanager
def _clipping_seen(module: LightningModule, optimizer: RepeatsPasses) -> Iterator[None]:
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

    with patched(module, name, seen):
        yield
