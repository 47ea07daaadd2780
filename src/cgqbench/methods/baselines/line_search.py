"""An optimizer that searches the line along its direction: what Armijo and PAL have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cgq import Search
from cgq.caller import Caller
from cgq.closure import Closure, loss_value
from cgq.flat import Layout, real, with_gradients
from cgq.geometry import Shape
from cgq.line import Line
from cgq.memory import Memory, renewed
from cgq.objective import Objective
from cgq.progress import count_skipped
from cgq.scalars import stacked
from cgq.vector import Vector

Phi = Callable[[float], float]

PLAIN = Shape(ratio=1.0, coupled=0.0, decoupled=0.0)


class Start(NamedTuple):
    """What a search knows before its first trial: φ(0), φ'(0) and the precision of the loss."""

    loss: float
    slope: float
    dtype: torch.dtype


class Found(NamedTuple):
    """What a search found, and the numbers it leaves in the groups for the next one."""

    search: Search
    numbers: dict[str, float]


class LineSearch(Optimizer, ABC):
    """θ ← θ + αd with d = -g + βp, p the direction before, and α searched on the batch's own loss.

    Settings and progress are numbers in the parameter groups, which every checkpoint keeps. One
    line runs through all groups, so they are the same in each. `group["step_size"]` is the α
    applied, `group["beta"]` the β, and `group["skipped"]` counts the steps left out because loss,
    gradient or every trial was not finite.
    """

    last_search: Search | None
    normalised: ClassVar[bool]
    """Whether the search measures steps as lengths |αd| and not as factors α."""

    def __init__(
        self, params: Any, settings: dict[str, float], beta: float, model: nn.Module | None
    ) -> None:
        self._attach(model)
        super().__init__(params, {**settings, "beta": beta, "step_size": 0.0, "skipped": 0})

    def _attach(self, model: nn.Module | None) -> None:
        """Set what is neither copied nor saved with the optimizer."""
        self.last_search = None
        self._caller = Caller(model)
        self._memory: Memory | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "defaults" in state:  # unpickled or copied; load_state_dict brings no defaults
            self._attach(None)
        super().__setstate__(state)
        self._memory = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; it cannot have settings of its own."""
        for name, value in self.defaults.items():
            if param_group.get(name, value) != value:
                raise ValueError(
                    f"{name} is {param_group[name]!r} in one parameter group and {value!r} for "
                    "the optimizer, but one line runs through all groups. Set it once, for all."
                )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Take one step and return the loss at the point it started from.

        The closures are those of `cgq.CGQ`, but one is needed, and it must return the loss.
        """
        self.last_search = None
        if closure is None:
            raise RuntimeError("A line search measures the loss: call step(closure).")
        params = [param for group in self.param_groups for param in group["params"]]
        with self._caller.first_pass(closure, params) as (objective, loss):
            self._take_step(objective, loss)
        return loss

    @abstractmethod
    def _search(self, phi: Phi, start: Start) -> Found:
        """Search φ; a step of 0.0 after trials means that none could be taken."""

    def _take_step(self, objective: Objective, loss: Tensor | float | None) -> None:
        if loss is None:
            raise RuntimeError("The closure returned None; a line search needs the loss.")
        numbers, params = with_gradients(self.param_groups)
        if not params:
            return
        memory = self._memory = renewed(
            self._memory, params, numbers, self.state, False, lambda: Layout(params, numbers)
        )
        try:
            moved = self._move(memory, objective, loss)
        except BaseException:
            memory.forget_fresh(self.state)
            raise
        if moved:
            memory.fresh.clear()
        else:
            memory.forget_fresh(self.state)
            objective.undo()
            for group in self.param_groups:
                count_skipped(group, True)

    def _move(self, memory: Memory, objective: Objective, loss: Tensor | float) -> bool:
        """Search and go there; false, with nothing changed, if that was not possible."""
        layout, beta = memory.layout, self.param_groups[0]["beta"]
        grads = [real(param.grad) for param in layout.params if param.grad is not None]
        decays = [0.0] * len(self.param_groups)
        new = memory.new_residual(grads, 1.0, decays)
        g = Vector(layout, new.parts, -new.scale)
        p = Vector(layout, lambda: memory.direction.parts)
        products = (g @ g, g @ p, p @ p) if beta else (g @ g, 0.0, 0.0)
        value = loss_value(loss, layout.device)
        phi_0, gg, gp, pp = stacked(layout.device, value, *products).tolist()
        slope = beta * gp - gg
        squared_length = gg - 2.0 * beta * gp + beta * beta * pp
        if not all(map(math.isfinite, (phi_0, slope, squared_length))):
            return False
        unit = 1.0  # the α of a step of 1
        if self.normalised:
            # A d so short that 1/|d| leaves the range of its dtype is as good as none.
            usable = squared_length * layout.range > 1.0
            unit, slope = (squared_length**-0.5, slope) if usable else (1.0, 0.0)
        dtype = loss.dtype if isinstance(loss, Tensor) else torch.float64
        objective.prepare_probes()
        line = Line(memory, grads, [PLAIN] * len(decays), sign=1.0, a=1.0, b=beta)

        def phi(step: float) -> float:
            line.move_to(step * unit)
            return float(objective.probe(layout.device))

        try:
            search, progress = self._search(phi, Start(phi_0, slope * unit, dtype))
            alpha = search.step_size * unit
            line.move_to(alpha)
        except BaseException:
            line.move_back()
            raise
        self.last_search = search
        if search.evaluations and not search.step_size:
            return False
        objective.end_probes()
        if beta:
            if memory.is_gathered(new):
                new = memory.residual_at_snapshot(grads, 1.0, decays)
            memory.remember(new, beta)
        for group in self.param_groups:
            group.update(progress, step_size=alpha)
        return True


def require(valid: bool, name: str, value: object, cure: str) -> None:
    """Raise a `ValueError` that names a setting and its cure, unless it is valid."""
    if not valid:
        raise ValueError(f"Invalid {name} value: {value}. {cure}")
