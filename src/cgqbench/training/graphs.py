"""A batch's passes as CUDA graphs: captured once for each shape, then replayed by `step(closure)`.

A network of hundreds of small layers spends its time on launching kernels; a replay launches all of
them at once. Training is bit for bit the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cgq import side_by_side
from cgq.evaluation import (
    Environment,
    StaleGradients,
    dtypes_behind,
    let_draw_again,
    loss_value,
    rounding,
)
from cgqbench.tasks.task import Loss, TaskError
from cgqbench.training.capturable import only_what_a_graph_repeats
from cgqbench.training.flat_values import flat_values, set_values

# Passes before a capture, in which libraries choose their kernels and take their memory.
WARM_UP = 3
# Those whose statistics are known to stay when they are told not to track them.
NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm
# Parameters looked at before each replay: a method that moves them in memory moves them all.
WATCHED = 8


class Graphs:
    """Makes the closures of a model's batches, each a replay of the graphs for its shape.

    `loss(inputs, targets)` is the model's loss on a batch. What it draws from the device's
    generator is drawn anew at each replay; what it would draw on the host cannot be captured.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self._model, self._loss = model, loss
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[tuple[torch.Size, torch.Size], Captured] = {}

    def closure(self, inputs: Tensor, targets: Tensor) -> Replay:
        """The closure of a batch."""
        shape = inputs.shape, targets.shape
        if shape not in self._captured:
            self._captured[shape] = Captured(
                self._model, self._loss, inputs, targets, self._pool, self._stream
            )
        return Replay(self._captured[shape], inputs, targets)


class Captured:
    """The passes of one shape of batch: loss and gradient, loss alone, and taking back."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        inputs: Tensor,
        targets: Tensor,
        pool: Any,
        stream: torch.cuda.Stream,
    ) -> None:
        self.params = [param for param in model.parameters() if param.requires_grad]
        self._watched = self.params[:: max(1, len(self.params) // WATCHED)]
        self._addresses = [param.data_ptr() for param in self._watched]
        self.inputs = inputs.clone()
        self.targets = targets.clone()
        self.generator = torch.cuda.default_generators[inputs.device.index or 0]
        self._model, self._loss = model, loss
        self._pool, self._stream = pool, stream
        self._buffers = [b for b in model.buffers() if b.numel()]
        self.lost = torch.zeros((), dtype=torch.bool, device=inputs.device)
        environment = Environment(model)
        with environment.first_pass():
            self._warm_up()
            self.both, self.loss = self._graph(self._first_pass)
            self.grads = [param.grad for param in self.params]
            self.only, self.probed = self._graph(self._probe)
            self.undo = self._graph(self._undo)[0] if self._buffers else None
        environment.rewind()

    def check(self) -> None:
        """Refuse to replay what reads elsewhere than where the parameters now are."""
        if [param.data_ptr() for param in self._watched] != self._addresses:
            raise TaskError(
                "The method gives the parameters new memory at each step, which a captured graph "
                "cannot follow. Add --no-graphs."
            )

    def _warm_up(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        batch = self.inputs, self.targets
        with torch.cuda.stream(self._stream), only_what_a_graph_repeats(self._model, batch):
            for _ in range(WARM_UP):
                self._first_pass()
                self._probe()
        torch.cuda.current_stream().wait_stream(self._stream)

    def _graph(self, passes: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                result = passes()
        except RuntimeError as error:
            torch.cuda.set_stream(current)  # which torch leaves to who gets so far
            let_draw_again(self.inputs.device)
            raise TaskError(
                f"The model cannot be captured as a CUDA graph: {error}. Add --no-graphs."
            ) from error
        return graph, result

    def _first_pass(self) -> Tensor:
        for param in self.params:
            param.grad = None
        self._before = flat_values(self._buffers)
        with torch.enable_grad():
            loss = self._loss(self.inputs, self.targets)
            self.rounding = rounding(dtypes_behind(loss, self.inputs.device))
            loss.backward()  # type: ignore[no-untyped-call]
        self._join_gradients()
        return loss.detach()

    def _join_gradients(self) -> None:
        grads = [param.grad for param in self.params if param.grad is not None]
        places = side_by_side(self.params) if len(grads) == len(self.params) else None
        if places is not None:
            torch._foreach_copy_(places, grads)
            for param, place in zip(self.params, places, strict=True):
                param.grad = place

    def _probe(self) -> Tensor:
        other_buffers = self._buffers if _has_other_buffers(self._model) else []
        now = flat_values(other_buffers)
        if now:  # a probe sees what the first pass saw, and leaves what that left
            set_values(other_buffers, self._before)
        with torch.no_grad(), _frozen_statistics(self._model):
            loss = self._loss(self.inputs, self.targets)
        if now:
            set_values(other_buffers, now)
        return loss

    def _undo(self) -> Tensor:
        """Buffers as before the first pass, where `lost` is true."""
        now = flat_values(self._buffers)
        mixed = [torch.where(self.lost, b, n) for n, b in zip(now, self._before, strict=True)]
        set_values(self._buffers, mixed)
        return self.lost


class Replay:
    """A batch's closure, for any optimizer; for those that search, also its own `Objective`."""

    runs_backward = False
    draws_differ = False
    dropped: Sequence[Tensor] = ()

    def __init__(self, captured: Captured, inputs: Tensor, targets: Tensor) -> None:
        self._captured = captured
        self.rounding = captured.rounding
        captured.inputs.copy_(inputs)
        captured.targets.copy_(targets)
        self._offset = self._offset_after = 0

    def __call__(self, backward: bool = True) -> Tensor:
        """The loss, and its gradient in `.grad` if `backward`."""
        captured = self._captured
        if not backward:
            captured.only.replay()
            return captured.probed.clone()
        captured.check()
        captured.both.replay()
        for param, grad in zip(captured.params, captured.grads, strict=True):
            param.grad = grad
        return captured.loss.clone()

    def first_pass(self, stale: StaleGradients) -> Tensor:
        """Loss and gradient; gradients of before are not added to but replaced."""
        self._offset = self._captured.generator.get_offset()
        return self(backward=True)

    def prepare_probes(self) -> None:
        """Note how far the first pass has drawn."""
        self._offset_after = self._captured.generator.get_offset()

    def probe(self, device: torch.device) -> Tensor | float:
        """The loss with the first pass's noise and no trace in the statistics."""
        self._captured.generator.set_offset(self._offset)
        return loss_value(self(backward=False), device)

    def end_probes(self) -> None:
        """Go on drawing where the first pass ended."""
        self._captured.generator.set_offset(self._offset_after)

    def undo(self) -> None:
        """Buffers and generator as before the first pass."""
        self._captured.generator.set_offset(self._offset)
        self.undo_buffers_where(torch.ones_like(self._captured.lost))

    def undo_buffers_where(self, lost: Tensor) -> None:
        """Buffers as before the first pass where `lost` is true, decided on the device."""
        if self._captured.undo is not None:
            self._captured.lost.copy_(lost)
            self._captured.undo.replay()


def _has_other_buffers(model: nn.Module) -> bool:
    """Whether there are buffers besides the statistics that `_frozen_statistics` protects."""
    return any(
        type(module) not in NORMS and any(b is not None for b in module._buffers.values())
        for module in model.modules()
    )


@contextmanager
def _frozen_statistics(model: nn.Module) -> Iterator[None]:
    """BatchNorm as in training, but its running statistics are left alone."""
    tracking = [
        m
        for m in model.modules()
        if isinstance(m, NORMS) and type(m) in NORMS and m.track_running_stats
    ]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True
