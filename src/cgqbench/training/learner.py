"""What a run changes: model, optimizer, schedule and averaged weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cgq import AnytimeAverage
from cgqbench.experiments.cell import Cell
from cgqbench.methods import chosen
from cgqbench.methods.schedules import Budget
from cgqbench.tasks.seeds import derived, seed_everything
from cgqbench.tasks.task import Loss, Task
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.feed import Feed
from cgqbench.training.graphs import Graphs


class Learner:
    """Everything a run changes, beside the cell, the task and the batches it was made for."""

    def __init__(
        self, cell: Cell, task: Task, feed: Feed, arithmetic: Arithmetic, *, graphs: bool = False
    ) -> None:
        method = chosen(cell.method, cell.network)
        seed_everything(derived(cell.seed, "initialisation"))
        self.cell, self.task, self.feed, self.arithmetic = cell, task, feed, arithmetic
        self.model = arithmetic.placed(task.model(), task.channels_last)
        self._graphs = Graphs(self.model, self.loss) if graphs else None
        budget = Budget(cell.epochs, len(feed))
        self.optimizer = method.optimizer(self.model, budget, derived(cell.seed, "method"))
        self.scheduler = method.scheduler(self.optimizer, budget)
        self.averaged = AnytimeAverage(self.model) if cell.average else None

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch."""
        whole = len(targets) == self.cell.batch_size
        inputs = self.arithmetic.inputs(inputs, self.task.channels_last)
        with self.arithmetic.passes() if whole else self.arithmetic.other_passes():
            return self.task.loss(self.model(inputs), targets)

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
