"""Conjugate directions with any search, as a torch optimizer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from cgq.engine.conjugate import Conjugate
from cgq.engine.direction import Outcome
from cgq.engine.geometry import GroupShare, group_shares
from cgq.engine.messages import CAPPED, LOWERED
from cgq.engine.optimizer import SearchOptimizer
from cgq.engine.options import (
    ConjugateOptions,
    checked_group,
    line_wide,
    own_settings,
    refuse_foreign,
    refuse_strays,
    with_group,
)
from cgq.engine.recorded_conjugate import RecordedConjugate
from cgq.engine.rollback import Rollback
from cgq.engine.run_guard import earned_ceiling
from cgq.engine.state import DirectionState, renewed
from cgq.evaluation.objective import Objective
from cgq.rules.capped import Capped
from cgq.rules.search import SearchRule
from cgq.vectors.layout import Layout, with_gradients
from cgq.vectors.sharding import reduction


class ConjugateDescent(SearchOptimizer):
    """Conjugate directions with a search of your own: what CGQ is with `QuadraticSearch`.

    Args:
        params: parameters or parameter groups, as for `CGQ`.
        lr: the ceiling of the step.
        search: chooses the step along the direction (see `SearchRule`).
        weight_decay: L2 decay in the direction.
        model: the module whose buffers a probe must not change.
        process_group: the ranks that share the model; None: all of them.
        options: the others of `CGQ`.

    >>> import torch
    >>> from cgq import QuadraticSearch
    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> optimizer = ConjugateDescent([weight], search=QuadraticSearch(max_fits=1), momentum=0.5)
    >>> loss = optimizer.step(lambda: weight.square().sum())
    >>> optimizer.last_search.accepted
    True
    """

    options: ConjugateOptions
    _workspace: DirectionState | None

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.3,
        *,
        search: SearchRule | None,
        weight_decay: float = 0.0,
        model: nn.Module | None = None,
        process_group: ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        defaults = checked_group(lr, weight_decay)
        self.options = ConjugateOptions(search=search, **options)
        self._set_by_groups: dict[str, Any] = {}
        super().__init__(params, defaults, model, process_group)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_set_by_groups": self._set_by_groups}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group. What holds for the whole line may be given here, but only in one voice."""
        own, shared = own_settings(param_group, self.defaults), line_wide(param_group)
        options = with_group(self.options, self._set_by_groups, shared)
        super().add_param_group({"first_lr": float(own["lr"]), **own})
        self.options = options
        self._set_by_groups |= shared
        self._complete_groups()

    def __setstate__(self, state: dict[str, Any]) -> None:
        refuse_foreign(state.get("param_groups", []))
        super().__setstate__(state)

    def _take_step(
        self, objective: Objective | None, loss: Tensor | float | None, rollback: Rollback
    ) -> Outcome | None:
        numbers, params = with_gradients(self.param_groups)
        if not params:
            return None
        refuse_strays(self.param_groups)
        shares, ceiling = self._shares()
        state = self._workspace = renewed(
            self._workspace,
            params,
            numbers,
            self.state,
            callable(self.options.momentum),
            lambda: Layout(params, numbers, reduction(params, self._ranks)),
        )
        rollback.callback(state.forget_fresh, self.state)
        grads = state.layout.gradients()
        if objective is None and not ceiling and state.is_first_and_idle(grads):
            state.fresh.clear()  # not a step: so distributed checkpoints ask for a first state
            return None
        kind = Conjugate if state.layout.on_host else RecordedConjugate
        direction = kind(
            state,
            grads,
            self._gradients.unclipped(params),
            shares,
            ceiling,
            earned_ceiling(self.options, self.param_groups[0], loss, state.layout),
            options=self.options,
            ranks=self._team,
            before=self.param_groups[0],
        )
        due = bool(ceiling) and objective is not None and loss is not None and self._is_due()
        outcome = self._moved(direction, self.options, objective, loss, rollback, due=due)
        if outcome.skipped is not True:
            state.fresh.clear()
        return outcome

    def _record(self, outcome: Outcome | None, objective: Objective | None) -> None:
        super()._record(outcome, objective)
        searched = outcome is not None and outcome.search is not None
        if searched and self.options.searches_as_the_paper:
            self._tell_of_ceiling(max(self.param_groups, key=lambda group: float(group["lr"])))

    def _tell_of_ceiling(self, group: dict[str, Any]) -> None:
        """Say so where the ceiling alone is the rate, or has become one."""
        ceiling, capped = float(group["lr"]), Capped.of(group)
        # Older states do not hold the first one; a scheduler does.
        first = group["first_lr"] or float(group.get("initial_lr", ceiling))
        if capped.is_too_low(ceiling, first) and "initial_lr" not in group:
            self._messages.give(LOWERED, ceiling=ceiling, first=first)
        absolute = self.options.max_relative_step is None
        if absolute and ceiling >= first and capped.is_the_rate:
            more = 3.0 * ceiling
            self._messages.give(CAPPED, ceiling=ceiling, more=more, trial=more / 3.0)

    def _ratios(self) -> list[float]:
        return [share.ratio for share in self._shares()[0]]

    def _shares(self) -> tuple[list[GroupShare], float]:
        return group_shares(self.param_groups, self.options.decoupled_weight_decay)

    def _is_due(self) -> bool:
        """By the coin or if the run calls for it, but always before any step was found."""
        return super()._is_due() or not self.param_groups[0]["average"]
