"""CGQ in skorch: a net whose probes are forward passes.

skorch gives `step` a closure that zeroes, runs backward and notifies callbacks whenever it is
called. `CGQNet` lets it do so once, and a probe only computes the loss.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from skorch import NeuralNet  # type: ignore[import-untyped,import-not-found,unused-ignore]
from skorch.dataset import unpack_data  # type: ignore[import-untyped,import-not-found,unused-ignore]
from skorch.utils import TeeGenerator  # type: ignore[import-untyped,import-not-found,unused-ignore]
from torch import Tensor

from cgq.cgq import CGQ
from cgq.engine.optimizer import SearchOptimizer


class CGQNet(NeuralNet):  # type: ignore[misc]
    """`skorch.NeuralNet` with CGQ: the same arguments, no learning rate.

    `lr` is the ceiling of the step. Options of `cgq.CGQ` are `optimizer__search_prob=0.1` and the
    like; another optimizer is a function of parameters and `lr` that puts `LineSearch` around it.
    Callbacks are notified as with any optimizer, and what `GradientNormClipping` does to the
    gradient does not spoil the slope.

    It serves as a mixin too: `class Classifier(CGQNet, NeuralNetClassifier): ...`.

    >>> import torch
    >>> inputs = torch.randn(64, 4)
    >>> net = CGQNet(torch.nn.Linear, criterion=torch.nn.MSELoss, module__in_features=4,
    ...              module__out_features=1, train_split=None, max_epochs=2, verbose=0)
    >>> net = net.fit(inputs, inputs.sum(1, keepdim=True))
    >>> net.optimizer_.last_search.evaluations > 0
    True
    """

    def __init__(self, *args: Any, optimizer: Any = CGQ, lr: float = 0.3, **kwargs: Any) -> None:
        super().__init__(*args, optimizer=optimizer, lr=lr, **kwargs)

    def train_step(self, batch: Any, **fit_params: Any) -> Any:
        """Take one step and return what its first pass gave."""
        if type(self).train_step_single is not NeuralNet.train_step_single:
            return super().train_step(batch, **fit_params)  # only that method knows its loss
        accumulator = self.get_train_step_accumulator()

        def closure(backward: bool = True) -> Tensor:
            if not backward:
                return self._loss_on(batch, **fit_params)
            self._zero_grad_optimizer()
            step = self.train_step_single(batch, **fit_params)
            accumulator.store_step(step)
            with ExitStack() as clipping:
                for name in self._optimizers:
                    optimizer = getattr(self, name + "_")
                    if isinstance(optimizer, SearchOptimizer):
                        clipping.enter_context(optimizer.clipping())
                params = TeeGenerator(self.get_all_learnable_params())
                self.notify("on_grad_computed", named_parameters=params, batch=batch, training=True)
            loss: Tensor = step["loss"]
            return loss

        self._step_optimizer(closure)
        return accumulator.get_step()

    def _loss_on(self, batch: Any, **fit_params: Any) -> Tensor:
        """As `train_step_single` without backward."""
        self._set_training(True)
        inputs, targets = unpack_data(batch)
        outputs = self.infer(inputs, **fit_params)
        loss: Tensor = self.get_loss(outputs, targets, X=inputs, training=True)
        return loss
