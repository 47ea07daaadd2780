"""CGQ: conjugate gradients with a quadratic line search, as a torch optimizer."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from cgq import progress
from cgq.closure import CLASSIC, Closure, Leftovers, Objective
from cgq.flat import Layout, real, with_gradients
from cgq.line import Shape, shapes_of
from cgq.memory import Memory
from cgq.momentum import Rule, polak_ribiere
from cgq.options import Options, checked_group, line_wide_of, own_of
from cgq.parabola import Fit, two_point
from cgq.policy import coin
from cgq.probe import World
from cgq.progress import Progress, count_skipped
from cgq.ranks import Ranks
from cgq.search import Search
from cgq.shards import whole_of
from cgq.step import Outcome, Step


class CGQ(Optimizer):
    r"""Conjugate gradients with a quadratic line search: no learning rate, no momentum to tune.

    .. math::
        p_t = -g_t + β_t p_{t-1}, \quad
        β_t = \min(\max(0, β^{PR}_t), β_{max}), \quad
        θ_{t+1} = θ_t + α_t p_t, \quad
        α_t = \min(-B/2A, α_{max}),

    where :math:`Aα^2 + Bα + C` is fitted to the loss of the same mini-batch along the step.

    Args:
        params: parameters or parameter groups; a group may set its own `lr` and `weight_decay`.
        lr: the ceiling α_max of the step, for schedulers and warm-up to act on. A group with a
            smaller one has its part of the line scaled by the ratio.
        max_relative_step: a second ceiling, ρ·|θ|/|p|; steps are then averaged as shares of it.
        momentum: a rule for β, or a number (heavy ball).
        max_momentum: β_max, the bound of what a rule returns.
        nesterov: Nesterov's form of the momentum.
        weight_decay: L2 decay in the direction (not in the searched loss).
        decoupled_weight_decay: decay outside the direction: θ ← (1 - α·weight_decay)·θ + αp.
        fit: `two_point`, `least_squares`, or a function like them.
        max_fits: how many parabolas at most; a search costs at most one evaluation more.
        probe: the first trial step; None: min(0.1, lr/3), or the ceiling if it is relative.
        search_prob: the share of batches that are searched (sCGQ); others use the average step.
        smoothing: the share of the old value kept when step and momentum are updated.
        model: the module whose buffers a probe must not change; None: those called by the closure,
            which a module compiled in place or a compiled function hides. Not copied or pickled.
        seed: decides which batches are searched.
        maximize: climb instead.
        process_group: the ranks that share the model; None: all of them.

    After each step `group["step_size"]` and `group["beta"]` tell what was applied,
    `last_search` what the search saw, and `group["skipped"]` counts steps left out because loss,
    gradient or every trial was not finite. On an accelerator such a number may be a 0-dim tensor,
    which makes the host wait only if it is read.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> inputs, targets = torch.randn(8, 3), torch.randn(8, 1)
    >>> optimizer = CGQ(model.parameters())
    >>> loss = optimizer.step(lambda: torch.nn.functional.mse_loss(model(inputs), targets))
    >>> optimizer.last_search.accepted
    True
    """

    last_search: Search | None
    options: Options

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.3,
        *,
        max_relative_step: float | None = None,
        momentum: Rule | float = polak_ribiere,
        max_momentum: float = 0.8,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        fit: Fit = two_point,
        max_fits: int = 3,
        probe: float | None = None,
        search_prob: float = 1.0,
        smoothing: float = 0.0,
        model: nn.Module | None = None,
        seed: int = 0,
        maximize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        defaults = checked_group(lr, weight_decay)
        if not (model is None or isinstance(model, nn.Module)):
            raise ValueError(f"Invalid model: {model!r}. Pass the torch.nn.Module you train.")
        self.options = Options(
            max_relative_step=max_relative_step,
            momentum=momentum,
            max_momentum=max_momentum,
            nesterov=nesterov,
            decoupled_weight_decay=decoupled_weight_decay,
            fit=fit,
            max_fits=max_fits,
            probe=probe,
            search_prob=search_prob,
            smoothing=smoothing,
            seed=seed,
            maximize=maximize,
        )
        self._attach(model, process_group)
        super().__init__(params, {**defaults, **progress.DEFAULTS})

    def _attach(self, model: nn.Module | None, process_group: ProcessGroup | None) -> None:
        """Set what is neither copied nor saved with the optimizer."""
        self.last_search = None
        self._world = World(model)
        self._ranks = Ranks(process_group)
        self._memory: Memory | None = None
        self._set_by_groups: dict[str, Any] = {}
        self._leftovers = Leftovers([])
        self._told = False

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "defaults" in state:  # unpickled or copied; load_state_dict brings no defaults
            self._attach(None, None)
        super().__setstate__(state)
        self._memory = None
        for group in self.param_groups:
            for name, value in progress.DEFAULTS.items():  # states saved before a number existed
                group.setdefault(name, value)

    def state_dict(self) -> dict[str, Any]:
        """The state, for any checkpoint; numbers that stayed on an accelerator are read here."""
        state = super().state_dict()
        for group in state["param_groups"]:
            group |= progress.read(group)
        return state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group. What holds for the whole line may be given here, but only in one voice."""
        if not isinstance(param_group, dict):
            raise TypeError(f"A parameter group must be a dict with 'params', not {param_group!r}.")
        line_wide = line_wide_of(param_group, self._set_by_groups)
        options = replace(self.options, **line_wide)
        super().add_param_group(own_of(param_group, self.defaults))
        self.options = options
        self._set_by_groups |= line_wide

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Take one step and return the loss at the point it started from.

        `closure` is one of: `closure() -> loss`; `closure(backward) -> loss`, which calls
        backward() if asked to; a classic torch closure, which always does. Without one, the
        gradients at hand and the average step are used.
        """
        self.last_search = None
        params = [param for group in self.param_groups for param in group["params"]]
        if closure is None:
            self._take_step(None, None)
            self._leftovers = Leftovers(params)
            return None
        objective = Objective(closure, params, self._world)
        try:
            loss = objective.first_pass(self._leftovers)
            try:
                self._ranks.refuse_join(self._world.modules)
                self._take_step(objective, loss)
            except BaseException:
                objective.undo()
                raise
        finally:
            self._world.forget()
            self._leftovers = Leftovers(params)
        return loss

    def _take_step(self, objective: Objective | None, loss: Tensor | float | None) -> None:
        numbers, params = with_gradients(self.param_groups)
        if not params:
            return
        shapes, ceiling = shapes_of(self.param_groups, self.options.decoupled_weight_decay)
        memory = self._memory_of(numbers, params)
        if objective is None and memory.fresh and not ceiling:
            memory.fresh.clear()  # not a step: so distributed checkpoints ask for a first state
            return
        try:
            step = Step(
                memory,
                [real(param.grad) for param in params if param.grad is not None],
                shapes,
                ceiling,
                options=self.options,
                ranks=self._ranks,
                progress=Progress.of(self.param_groups[0]),
            )
            if objective is not None and loss is not None and ceiling and self._is_due():
                self._tell_once(objective)
                outcome = step.searched(objective, loss)
            else:
                outcome = step.unsearched(loss)
        except BaseException:
            memory.forget_fresh(self.state)
            raise
        if outcome.skipped is True:
            memory.forget_fresh(self.state)
            if objective is not None:
                objective.undo()
        else:
            memory.fresh.clear()
            if isinstance(outcome.skipped, Tensor) and objective is not None:
                objective.undo_buffers_unless(~outcome.skipped)
        self._record(outcome, shapes)

    def _is_due(self) -> bool:
        """Whether this batch is searched: by the coin, but always before any step was found."""
        first = self.param_groups[0]
        due = coin(self.options.seed, first["steps"], self.options.search_prob)
        return due or not first["average"]

    def _tell_once(self, objective: Objective) -> None:
        if objective.runs_backward and not self._told:
            self._told = True
            warnings.warn(CLASSIC, UserWarning, stacklevel=6)

    def _record(self, outcome: Outcome, shapes: list[Shape]) -> None:
        self.last_search = outcome.search
        for shape, group in zip(shapes, self.param_groups, strict=True):
            count_skipped(group, outcome.skipped)
            if outcome.skipped is not True:
                outcome.progress.write(group, shape.ratio)

    def _memory_of(self, groups: list[int], params: list[Tensor]) -> Memory:
        by_rule, memory = callable(self.options.momentum), self._memory
        if memory is None or not memory.serves(params, groups, self.state, by_rule):
            if memory is not None:
                memory.release(self.state)
            layout = Layout(params, groups, whole_of(params, self._ranks))
            memory = self._memory = Memory(layout, self.state, by_rule)
        return memory
