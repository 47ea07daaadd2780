"""The loop: one `step(closure)` for every method, one row for every epoch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import update_bn

from cgq import AnytimeAverage
from cgqbench.arithmetic import Arithmetic
from cgqbench.experiments.cell import Cell
from cgqbench.feed import Feed
from cgqbench.graphs import Graphs
from cgqbench.meter import Glance, Meter, finite
from cgqbench.methods import chosen
from cgqbench.methods.schedules import Budget
from cgqbench.records.record import Line
from cgqbench.tasks.seeds import derived, seed_everything
from cgqbench.tasks.task import Loss, Task, TaskError

# Batches that re-estimate BatchNorm's statistics for averaged weights.
SAMPLE = 30
# Seconds between two looks at a running epoch; each costs a synchronisation on a GPU.
PATIENCE = 0.25


Watch = Callable[[Glance], None]


class Learner:
    """Everything a run changes: model, optimizer, schedule and averaged weights."""

    def __init__(
        self, cell: Cell, task: Task, feed: Feed, arithmetic: Arithmetic, *, graphs: bool = False
    ) -> None:
        method = chosen(cell.method, cell.network)
        seed_everything(derived(cell.seed, "initialisation"))
        self.arithmetic = arithmetic
        self.model = arithmetic.placed(task.model(), task.channels_last)
        self._task, self._batch_size = task, cell.batch_size
        self._graphs = Graphs(self.model, self.loss) if graphs else None
        budget = Budget(cell.epochs, len(feed))
        self.optimizer = method.optimizer(self.model, budget, derived(cell.seed, "method"))
        self.scheduler = method.scheduler(self.optimizer, budget)
        self.averaged = AnytimeAverage(self.model) if cell.average else None

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch."""
        whole = len(targets) == self._batch_size
        inputs = self.arithmetic.inputs(inputs, self._task.channels_last)
        with self.arithmetic.passes() if whole else self.arithmetic.other_passes():
            return self._task.loss(self.model(inputs), targets)

    def closure(self, inputs: Tensor, targets: Tensor) -> Callable[..., Tensor]:
        """The loss of a batch in the form that every optimizer takes."""
        if self._graphs is not None:
            return self._graphs.closure(inputs, targets)
        return closure_of(self.loss, self.optimizer, inputs, targets)

    def _parts(self) -> dict[str, Any]:
        names = "model", "optimizer", "scheduler", "averaged"
        parts = {name: getattr(self, name) for name in names}
        return {name: part for name, part in parts.items() if part is not None}

    def state_dict(self) -> dict[str, Any]:
        """The state of every part."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])


def parameter_count(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def train_epoch(
    learner: Learner, task: Task, feed: Feed, cell: Cell, epoch: int, watch: Watch
) -> Line:
    """Train for one epoch; what it came to, as part of a record's row.

    Everything random in an epoch starts from the seed and the epoch's number, so that a run
    continues from a checkpoint exactly as it would have gone on.
    """
    seed_everything(derived(cell.seed, "noise", epoch))
    model, optimizer = learner.model, learner.optimizer
    model.train()
    meter = Meter()
    next_look = time.monotonic() + PATIENCE
    for batch, (inputs, targets) in enumerate(feed.epoch(epoch), 1):
        version = inputs._version
        closure = learner.closure(inputs, targets)
        loss: Any = optimizer.step(closure)  # type: ignore[arg-type]
        if inputs._version != version:
            raise TaskError(
                "The model changes its inputs in place, so no second look at a batch can be "
                "trusted. Use operations without a trailing underscore on them."
            )
        meter.add(loss, optimizer)
        if learner.scheduler is not None:
            learner.scheduler.step()
        if learner.averaged is not None:
            learner.averaged.update_parameters(model)
        if time.monotonic() > next_look:
            watch(meter.glance(epoch, batch, len(feed)))
            next_look = time.monotonic() + PATIENCE
    return meter.row(optimizer)


def closure_of(
    loss_of: Loss, optimizer: Optimizer, inputs: Tensor, targets: Tensor
) -> Callable[[bool], Tensor]:
    """A batch's loss as a closure.

    Called without argument, as torch's own do, it runs backward(); ours ask for it by name.
    """

    def closure(backward: bool = True) -> Tensor:
        if backward:
            optimizer.zero_grad()
        loss = loss_of(inputs, targets)
        if backward:
            loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return closure


def evaluated(learner: Learner, task: Task, feed: Feed, epoch: int) -> Line:
    """Loss and accuracy on the test data, of the running weights and of their average."""
    with learner.arithmetic.other_passes(), evaluation_mode(learner.optimizer) as modes:
        model = learner.model
        if modes:  # these are other weights than those whose statistics BatchNorm has seen
            model = copy.deepcopy(model)
            update_bn(feed.sample(SAMPLE, epoch), model)
        loss, accuracy = on_test_data(model, task, feed)
    average_loss = average_accuracy = None
    if learner.averaged is not None:
        with learner.arithmetic.other_passes():
            update_bn(feed.sample(SAMPLE, epoch), learner.averaged)
            average_loss, average_accuracy = on_test_data(learner.averaged, task, feed)
    return {
        "test_loss": loss,
        "test_accuracy": accuracy,
        "average_test_loss": average_loss,
        "average_test_accuracy": average_accuracy,
    }


@torch.no_grad()
def on_test_data(model: nn.Module, task: Task, feed: Feed) -> tuple[float | None, float | None]:
    """Mean loss and accuracy in percent on the test data; accuracy only of classifications."""
    model.eval()
    loss = hits = answers = examples = 0.0
    for inputs, targets in feed.test():
        output = model(inputs)
        loss += task.loss(output, targets).item() * len(targets)
        examples += len(targets)
        if task.correct is not None:
            right = task.correct(output, targets)
            hits += right.sum().item()
            answers += right.numel()
    model.train()
    return finite(loss / examples), 100.0 * hits / answers if answers else None


@contextmanager
def evaluation_mode(optimizer: Optimizer) -> Iterator[bool]:
    """Show the weights that an optimizer with modes (Schedule-Free) wants evaluated, if it has."""
    modes = callable(getattr(optimizer, "eval", None)) and callable(
        getattr(optimizer, "train", None)
    )
    if modes:
        optimizer.eval()  # type: ignore[attr-defined]
    try:
        yield modes
    finally:
        if modes:
            optimizer.train()  # type: ignore[attr-defined]


def all_finite(model: nn.Module) -> bool:
    """Whether every parameter is a finite number."""
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())
