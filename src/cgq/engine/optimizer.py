"""What every optimizer has that searches along a line: its closure, its ranks, its numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from cgq.engine.advice import Advice
from cgq.engine.direction import Direction, Outcome
from cgq.engine.interrupts import HeldInterrupts
from cgq.engine.late_losses import LateLosses
from cgq.engine.messages import COPIED, DROPPED
from cgq.engine.options import SearchOptions, refuse_taken
from cgq.engine.rollback import Rollback
from cgq.engine.run_guard import Guard
from cgq.engine.searched_step import SearchedStep
from cgq.engine.speculative import SpeculativeStep
from cgq.engine.state import NUMBERS, complete, read_for_a_while, record
from cgq.evaluation.closure import ClosureObjective, objective_of
from cgq.evaluation.closure_kinds import Closure
from cgq.evaluation.environment import Environment
from cgq.evaluation.gradients import GradientLog
from cgq.evaluation.objective import Objective
from cgq.rules.search import Search
from cgq.rules.trust import Trust
from cgq.rules.watch import Watch
from cgq.rules.when_to_search import coin
from cgq.vectors.process_group import Ranks
from cgq.vectors.workspace import Workspace


class SearchOptimizer(Optimizer):
    """An optimizer whose `step(closure)` may evaluate the closure more than once."""

    NUMBERS: ClassVar[dict[str, float | int]] = NUMBERS
    """What each step hands to the next in the parameter groups, as it is at first."""

    options: SearchOptions
    _workspace: Workspace | None
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
        refuse_taken(self.options.memory, {**defaults, **self._own_numbers})
        super().__init__(params, {**defaults, **self._numbers})
        self._gradients.found(self._params())

    def _attach(self, model: nn.Module | None, process_group: ProcessGroup | None) -> None:
        """Set what is neither copied nor saved with the optimizer."""
        self.last_search = None
        self._environment = Environment(model)
        self._gradients = GradientLog()
        self._ranks = Ranks(process_group)
        self._messages = Advice()
        self._forget_vectors()

    def _forget_vectors(self) -> None:
        """Groups or state are others now."""
        self._workspace, self._guard, self._late_losses = None, Guard(), LateLosses()

    @property
    def model(self) -> nn.Module | None:
        """The module whose buffers a probe must not change. It may be named at any time."""
        return self._environment.model

    @model.setter
    def model(self, model: nn.Module | None) -> None:
        self._environment = Environment(model)

    @property
    def process_group(self) -> ProcessGroup | None:
        """The ranks that share the model, all of them if None. A copy must be told again."""
        return self._ranks.group

    @process_group.setter
    def process_group(self, process_group: ProcessGroup | None) -> None:
        self._ranks = Ranks(process_group)

    @property
    def _team(self) -> Ranks | None:
        """The ranks, where there are any to agree with."""
        return self._ranks if dist.is_available() and dist.is_initialized() else None

    def __getstate__(self) -> dict[str, Any]:
        if self._ranks.group is not None:
            self._messages.give(COPIED)
        self._guard.read_losses(self.param_groups)
        return {**super().__getstate__(), "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "defaults" in state:  # unpickled or copied; load_state_dict brings no defaults
            self._attach(None, None)
        super().__setstate__(state)
        self._forget_vectors()
        self._complete_groups()

    def state_dict(self) -> dict[str, Any]:
        """The state, for any checkpoint; numbers that stayed on an accelerator are read here."""
        self._guard.read_losses(self.param_groups)
        with read_for_a_while(self.param_groups, self._numbers):  # a hook may pack them elsewhere
            return super().state_dict()

    # A search decides on numbers, so there is no graph to make; the closure may hold compiled code.
    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Take one step and return the loss at the point it started from.

        `closure` is one of: `closure() -> loss`; `closure(backward) -> loss`, which calls
        backward() if asked to; a classic torch closure, which always does. Without one, the
        gradients in `.grad` and the average step are used.
        """
        self.last_search = None
        loss, params = None, self._params()
        if closure is None:
            self._outcome_of(None, None)
            self._gradients.used(params, from_caller=True)
        else:
            loss = self._step_on(closure, params)
        if loss is None:
            self._messages.on_missing_losses(self.param_groups[0], self.options)
        return loss

    def _step_on(self, closure: Closure, params: Sequence[Tensor]) -> Tensor | float | None:
        objective = objective_of(closure, params, self._environment)
        self._environment.look_for_compiled(params)
        stale, were_found = self._gradients.stale, self._gradients.were_found(params)
        is_first = not self.param_groups[0].get("steps")  # a bare checkpoint may lack it
        try:
            loss = objective.first_pass(stale)
            try:
                zeroed = self._gradients.stale is not stale  # by the closure's zero_grad()
                drops = not (zeroed or were_found) and self._gradients.are_missed(objective.dropped)
                outcome = self._outcome_of(objective, loss, drops=drops)
            finally:
                self._gradients_are_used(objective, params)
        finally:
            self._gradients.forget_unclipped()
            self._environment.forget()
        self._messages.on_closure(closure, objective, outcome, params, is_first=is_first)
        return loss

    def _outcome_of(
        self, objective: Objective | None, loss: Tensor | float | None, *, drops: bool = False
    ) -> Outcome | None:
        """Take the step and write it down; `drops`: gradients were there that it does not use."""
        with HeldInterrupts() as interrupts:
            with Rollback(interrupts) as rollback:
                if objective is not None:
                    rollback.callback(objective.undo)
                    if drops:
                        self._messages.give(DROPPED)
                    if self._team is not None:
                        self._team.refuse_join(self._environment.modules)
                outcome = self._take_step(objective, loss, rollback)
                if outcome is None or outcome.skipped is not True:
                    rollback.pop_all()
            self._record(outcome, objective)
        return outcome

    def _gradients_are_used(self, objective: Objective, params: Sequence[Tensor]) -> None:
        if isinstance(objective, ClosureObjective):
            self._gradients.used(params, from_caller=objective.uses_callers)
        else:  # an objective of its own replaces gradients: it asks for no stale ones
            self._gradients.used(())

    @abstractmethod
    def _take_step(
        self, objective: Objective | None, loss: Tensor | float | None, rollback: Rollback
    ) -> Outcome | None:
        """Move the parameters by the gradients in `.grad`; None: there was nothing to do.

        `rollback` learns how to take back each thing that is done. If this raises, or the step is
        skipped, all of it is.
        """

    @abstractmethod
    def _ratios(self) -> list[float]:
        """What each group takes of the line's step."""

    def _moved(
        self,
        direction: Direction,
        options: SearchOptions,
        objective: Objective | None,
        loss: Tensor | float | None,
        rollback: Rollback,
        *,
        due: bool,
    ) -> Outcome:
        """Search if that is due; else take the average step."""
        before = self.param_groups[0]
        if not due:
            rollback.interrupts.hold()
        if objective is None or loss is None or not (due or options.is_watched):
            return direction.unsearched_step(loss)
        if not due:
            outcome = direction.watched_step(loss, self._late_losses.watch(self.param_groups))
            if outcome is not None:
                return outcome
            rollback.interrupts.release()  # nothing was done yet
        kind = SearchedStep if direction.layout.on_host else SpeculativeStep
        self._guard.send_losses()
        # Not in the first step, which many look at closely to see what a search costs; and a search
        # of somebody else's is given what it asks for.
        unchecked = before["steps"] > 0 and not before["start_checks"]
        check = unchecked and options.searches_as_the_paper
        step = kind(direction, objective, options, before, rollback, check_start=check)
        return step.take(loss)._replace(due=True)

    def _record(self, outcome: Outcome | None, objective: Objective | None) -> None:
        """Write down what came of a step."""
        if outcome is None:
            return
        if isinstance(outcome.skipped, Tensor) and objective is not None:
            objective.undo_buffers_where(outcome.skipped)
        self.last_search = outcome.search
        record(outcome, self.param_groups, self._ratios(), self._counts_skipped)
        if outcome.skipped is False:
            self._guard.lost_in_a_row = 0
        if self.options.is_watched:
            self._late_losses.tell(outcome, self.param_groups)
        guarded, groups = self.options.is_guarded, self.param_groups
        self._messages.on_outcome(
            outcome,
            objective,
            self.options,
            lost_many=outcome.skipped is True and self._guard.has_lost_many(outcome),
            is_stuck=guarded and self._guard.sees_stuck(outcome, groups),
        )
        if outcome.repeats is not None:
            for group in groups:
                group["start_checks"] += outcome.skipped is False

    def _is_due(self) -> bool:
        """Whether this batch is searched."""
        first = self.param_groups[0]
        if self.options.is_guarded and first["alert"]:
            return True
        if self.options.is_watched and self._late_losses.watch(self.param_groups).to_search:
            return True
        calls = first["steps"] + (first["skipped"] if self._counts_skipped else 0)
        return coin(self.options.seed, calls, self.options.search_prob)

    @property
    def _counts_skipped(self) -> bool:
        """Whether the host knows which steps were skipped; elsewhere they count as steps."""
        return self._workspace is None or self._workspace.layout.on_host

    @property
    def _numbers(self) -> dict[str, float | int]:
        """All that is kept in the groups."""
        return self._own_numbers | self.options.memory

    @property
    def _own_numbers(self) -> dict[str, float | int]:
        """All of them but what the search keeps."""
        trust = Trust()._asdict() if self.options.is_guarded else {}
        watch = Watch()._asdict() | LateLosses.numbers() if self.options.is_watched else {}
        return self.NUMBERS | trust | watch

    def _complete_groups(self) -> None:
        complete(self.param_groups, self._numbers)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch. Zeros left in place count as no gradient."""
        super().zero_grad(set_to_none)
        self._gradients.cleared(() if set_to_none else self._params())

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
        return self._gradients.clipping(self._params())

    def _params(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]
