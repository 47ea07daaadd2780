"""What every optimizer has that searches along a line: its caller, its ranks, its memory."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from cgq.caller import Caller
from cgq.closure import Closure
from cgq.lookout import Lookout
from cgq.memory import Vectors
from cgq.notices import CLASSIC, LOST, STUCK, UNWATCHED
from cgq.objective import Objective
from cgq.options import Options
from cgq.policy import coin
from cgq.precision import rounding
from cgq.progress import DEFAULTS, count_rejected, count_skipped, read
from cgq.ranks import Ranks
from cgq.search import Search
from cgq.step import Outcome, Step
from cgq.watch import Watch

LONG = 100  # steps after which somebody should have shown a loss


class Searching(Optimizer):
    """An optimizer whose `step(closure)` may evaluate the closure more than once."""

    NUMBERS: ClassVar[dict[str, float | int]] = DEFAULTS
    """What each step hands to the next in the parameter groups, as it is at first."""

    options: Options
    _memory: Vectors | None
    last_search: Search | None
    """What the last step saw in its search, or None if it did not search."""

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        model: nn.Module | None,
        process_group: ProcessGroup | None,
    ) -> None:
        self._attach(model, process_group)
        super().__init__(params, {**defaults, **self._numbers})
        self._caller.has_found(self._params())

    def _attach(self, model: nn.Module | None, process_group: ProcessGroup | None) -> None:
        """Set what is neither copied nor saved with the optimizer."""
        self.last_search = None
        self._caller = Caller(model)
        self._ranks = Ranks(process_group)
        self._memory = None
        self._lookout = Lookout()

    @property
    def model(self) -> nn.Module | None:
        """The module whose buffers a probe must not change. It may be named at any time."""
        return self._caller.model

    @model.setter
    def model(self, model: nn.Module | None) -> None:
        self._caller.model = model

    def __getstate__(self) -> dict[str, Any]:
        self._lookout.read_losses(self.param_groups)
        return {**super().__getstate__(), "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "defaults" in state:  # unpickled or copied; load_state_dict brings no defaults
            self._attach(None, None)
        super().__setstate__(state)
        self._memory, self._lookout = None, Lookout()
        self._complete_groups()  # of states saved before a number existed

    def state_dict(self) -> dict[str, Any]:
        """The state, for any checkpoint; numbers that stayed on an accelerator are read here."""
        self._lookout.read_losses(self.param_groups)
        state = super().state_dict()
        for group in state["param_groups"]:
            group |= read(group, self.NUMBERS)
        return state

    # A search decides on numbers, so there is no graph to make; the closure may hold compiled code.
    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Take one step and return the loss at the point it started from.

        `closure` is one of: `closure() -> loss`; `closure(backward) -> loss`, which calls
        backward() if asked to; a classic torch closure, which always does. Without one, the
        gradients at hand and the average step are used.
        """
        self.last_search = None
        loss = None
        if closure is None:
            self._take_step(None, None)
            self._caller.gradients_are_done_with(self._params())
        else:
            with self._caller.first_pass(closure, self._params()) as (objective, loss):
                self._ranks.refuse_join(self._caller.modules)
                self._take_step(objective, loss)
        if loss is None and self._is_unwatched:
            self._caller.notices.give(UNWATCHED)
        return loss

    @abstractmethod
    def _take_step(self, objective: Objective | None, loss: Tensor | float | None) -> None:
        """Move the parameters by the gradients in `.grad`."""

    @property
    def _is_watched(self) -> bool:
        """Whether the loss and the share may ask for more searches than the coin."""
        return self.options.max_relative_step is not None and 0.0 < self.options.search_prob < 1.0

    @property
    def _is_unwatched(self) -> bool:
        """Whether the run should be watched and has shown no loss for long."""
        first = self.param_groups[0]
        if not self._is_watched or first["steps"] < LONG:
            return False
        return not (first["average"] or Watch.of(first).losses)

    def _options_with(self, loss: Tensor | float | None) -> Options:
        """Those of this step: of a relative ceiling, as much as the run has earned."""
        rho = self.options.max_relative_step
        if rho is None or loss is None or self._memory is None or not self._is_watched:
            return self.options
        # Weights of few digits, as in bf16, do not see a step that is shorter than those.
        visible = min(rho, rounding(self._memory.layout.dtypes))
        earned = max(Watch.of(self.param_groups[0]).ceiling(rho), visible)
        return self.options if earned == rho else replace(self.options, max_relative_step=earned)

    @property
    def _numbers(self) -> dict[str, float | int]:
        """All that is kept in the groups."""
        return self.NUMBERS | Watch()._asdict() if self._is_watched else self.NUMBERS

    def _complete_groups(self) -> None:
        for group in self.param_groups:
            group.update(self._numbers | group)

    def _is_due(self) -> bool:
        """Whether this batch is searched."""
        first = self.param_groups[0]
        if self._is_watched and first["alert"]:
            return True
        return coin(self.options.seed, first["steps"], self.options.search_prob)

    def _moved(
        self, step: Step, objective: Objective | None, loss: Tensor | float | None, due: bool
    ) -> Outcome:
        """Search if that is due and there is a loss to measure; else take the average step."""
        if not due or objective is None or loss is None:
            return step.unsearched(loss)
        if objective.runs_backward:
            self._caller.notices.give(CLASSIC)
        return step.searched(objective, loss)._replace(due=True)

    def _record(self, outcome: Outcome, ratios: list[float]) -> None:
        """Write down what came of a step, of which each group took its ratio."""
        self.last_search = outcome.search
        for ratio, group in zip(ratios, self.param_groups, strict=True):
            count_skipped(group, outcome.skipped)
            count_rejected(group, outcome.search)
            if outcome.skipped is not True:
                self._write(outcome, group, ratio)
        if self._lookout.has_lost_many(outcome):
            self._caller.notices.give(LOST)
        if self._is_watched:
            self._lookout.see(outcome, self.param_groups)
            if outcome.due and Watch.of(self.param_groups[0]).is_stuck:
                self._caller.notices.give(STUCK)

    def _write(self, outcome: Outcome, group: dict[str, Any], ratio: float) -> None:
        outcome.progress.write(group, ratio)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch. Zeros left in place count as no gradient."""
        super().zero_grad(set_to_none)
        self._caller.gradients_are_done_with(self._params())

    def clipping(self) -> AbstractContextManager[None]:
        """Where gradients are clipped, or changed otherwise, between backward() and the step.

        The direction is then made of what the block leaves in `.grad`, and its slope with the
        gradients of the loss that were there before: a search needs both.

        >>> import torch
        >>> from cgq import CGQ
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = CGQ([weight])
        >>> def closure(backward):
        ...     loss = weight.square().sum()
        ...     if backward:
        ...         loss.backward()
        ...         with optimizer.clipping():
        ...             torch.nn.utils.clip_grad_norm_(weight, 0.1)
        ...     return loss
        >>> loss = optimizer.step(closure)
        """
        return self._caller.unclipped.kept(self._params())

    def _params(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]
