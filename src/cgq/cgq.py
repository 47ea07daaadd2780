"""CGQ: conjugate gradients with a quadratic line search, as a torch optimizer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from cgq.engine.conjugate import Conjugate
from cgq.engine.device_directions import DeviceConjugate
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
from cgq.engine.rollback import Rollback
from cgq.engine.run_guard import trusted
from cgq.engine.state import DirectionState, renewed
from cgq.evaluation.objective import Objective
from cgq.rules.capped import Capped
from cgq.rules.momentum import Rule, polak_ribiere
from cgq.rules.parabola import Fit, two_point
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
        options = trusted(self.options, self.param_groups[0], loss, state.layout)
        kind = Conjugate if state.layout.on_host else DeviceConjugate
        direction = kind(
            state,
            grads,
            self._gradients.unclipped(params),
            shares,
            ceiling,
            options=options,
            ranks=self._team,
            before=self.param_groups[0],
        )
        due = bool(ceiling) and objective is not None and loss is not None and self._is_due()
        outcome = self._moved(direction, options, objective, loss, rollback, due=due)
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


class CGQ(ConjugateDescent):
    r"""Conjugate gradients with a quadratic line search: no learning rate, no momentum to tune.

    .. math::
        p_t = -g_t + β_t p_{t-1}, \quad
        β_t = \min(\max(0, β^{PR}_t), β_{max}),

        θ_{t+1} = θ_t + α_t p_t, \quad
        α_t = \min(-B/2A, α_{max}),

    where :math:`Aα^2 + Bα + C` is fitted to the loss of the same mini-batch along the step.

    Args:
        params: parameters or parameter groups; a group may set its own `lr` and `weight_decay`.
        lr: the ceiling α_max of the step, for schedulers and warm-up to act on. A group with a
            smaller one has its part of the line scaled by the ratio.
        max_relative_step: a second ceiling, ρ·‖θ‖/‖p‖; steps are then averaged as shares of it.
        momentum: a rule for β, or a number (heavy ball).
        max_momentum: β_max, the bound of what a rule returns.
        nesterov: Nesterov's form of the momentum.
        weight_decay: L2 decay in the direction (not in the searched loss).
        decoupled_weight_decay: decay outside the direction: θ ← (1 - α·weight_decay)·θ + αp.
        fit: `two_point`, `least_squares`, or a function like them.
        max_fits: how many parabolas at most; a search costs at most one evaluation more.
        probe: the first trial step; None: min(0.1, lr/3), or the ceiling if it is relative.
        search_prob: the share of batches that are searched (sCGQ); others use the average step,
            unless their loss stands above its recent level (see `docs/options.md`).
            Under a relative ceiling all are at first, while the share moves or the loss rises.
        smoothing: the share of the old value kept when step and momentum are updated.
        model: the module whose buffers a probe must not change; None: those called by the closure,
            which a compiled function hides. Not copied or pickled.
        seed: decides which batches are searched.
        maximize: climb instead.
        process_group: the ranks that share the model; None: all of them.

    After each step `group["step_size"]` and `group["beta"]` tell what was applied,
    `last_search` what the search saw. `group["skipped"]` counts steps that were skipped
    because loss, gradient or every trial was not finite, `group["rejected_fits"]` parabolas lost in
    the rounding of the loss. On an accelerator such a number may be a 0-dim tensor: to read it is
    to wait.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> inputs, targets = torch.randn(8, 3), torch.randn(8, 1)
    >>> optimizer = CGQ(model.parameters())
    >>> loss = optimizer.step(lambda: torch.nn.functional.mse_loss(model(inputs), targets))
    >>> optimizer.last_search.accepted
    True
    """

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
        super().__init__(
            params,
            lr,
            search=None,
            weight_decay=weight_decay,
            model=model,
            process_group=process_group,
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
