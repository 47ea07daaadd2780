"""LineSearch: the search and the relative ceiling around any optimizer."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from cgq.engine.base_update import BaseUpdate, Displacement
from cgq.engine.device_base_update import DeviceBaseUpdate
from cgq.engine.direction import SKIPPED, Outcome
from cgq.engine.optimizer import SearchOptimizer
from cgq.engine.options import SearchOptions, refuse_strays, require
from cgq.engine.recorded_base import RecordedBase, keep_state
from cgq.engine.relative_ceiling import RelativeCeiling
from cgq.engine.rollback import Rollback
from cgq.engine.state import NUMBERS, read
from cgq.engine.unsuitable_base import refuse_unsuitable
from cgq.evaluation.objective import Objective
from cgq.rules.base_rate import Lift, at_lifted_rates, note_full_rates, rates, schedule
from cgq.rules.capped import Capped
from cgq.rules.parabola import Fit, two_point
from cgq.rules.search import SearchRule
from cgq.rules.trust_region import Region
from cgq.vectors.layout import Layout, with_gradients
from cgq.vectors.sharding import reduction

OPTIONS = frozenset(field.name for field in fields(SearchOptions)) | {"full_steps"}
MODES = "train", "eval"  # which Schedule-Free's optimizers have
COPIED = "base", "defaults", "options", "full_steps"


class LineSearch(SearchOptimizer):
    r"""Any optimizer without its learning rate: its direction, a measured length.

    .. math::
        d_t = \text{the update of } base, \quad
        θ_{t+1} = θ_t + α_t d_t, \quad
        α_t = s_t \cdot ρ_t \frac{‖θ_t‖}{‖d_t‖},

    where the ceiling :math:`ρ_t` is the radius of a trust region: it widens while the next batch
    agrees with a step and the line along it is straight, and settles at
    :math:`ρ \min(K, \sqrt{T/t})`, with T `full_steps`, where K is 2 if up to a million
    weights are trained, 1 if four million are and ½ if many are; along a straight line it is half
    as much again. On some batches the step at the ceiling is tried: it is taken if it lowers the
    loss, else a parabola says how much of it is. The share :math:`s_t ≤ 1` is averaged over them.
    The base's moments advance exactly once a step.

    Args:
        base: the optimizer that gives the direction, of `torch.optim` or like one. Its `lr` counts
            only as a rate between its groups, and for schedulers. With `capturable=True` its own
            kernels are recorded too on CUDA, where gradients stay where they are.
        max_relative_step: ρ, the measure of the longest step, relative to the weights.
        fit: `two_point`, `least_squares`, or a function like them.
        max_fits: how many parabolas at most; a search costs at most one evaluation more.
        search_prob: the share of batches that are searched while all is well; every batch is at
            first, while the share moves and while the loss rises. 0: none ever, the share is 1.
        smoothing: the part of the old share that is kept when a search has found a new one.
        full_steps: T, by which the ceiling fades: noise has to die away, for an average of the
            weights to find their middle. `math.inf`: it never fades.
        model: the module whose buffers a probe must not change; None: those called by the closure,
            which a module compiled in place or a compiled function hides. Not copied or pickled.
        seed: decides which batches are searched.
        process_group: the ranks that share the model; None: all of them.
        search: a search of yours in place of the parabola's (see `SearchRule`); `fit` and
            `max_fits` are then not used.

    The parameter groups are those of `base`, and so is the state: a checkpoint of one loads into
    the other. A scheduler on either changes `lr`, and the ceiling with it by what share `lr` then
    is of the largest it has been. After each step `group["step_size"]` is the
    effective rate and `last_search` what the search saw, in multiples of the update that the base
    proposed; `group["radius"]` is the ceiling, `group["agreement"]` and `group["straightness"]` are
    what it was judged by. `group["skipped"]` and `group["rejected_fits"]` are as with `CGQ`.

    Along an update that climbs on this batch nothing is searched: the average share is used. A step
    that is skipped or raises is rolled back, the base's state included; but not for a base that
    itself raises in an unsearched step. On an accelerator, where the host does not look, the base
    sees zeros for a non-finite gradient of such a step.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> inputs, targets = torch.randn(8, 3), torch.randn(8, 1)
    >>> optimizer = LineSearch(torch.optim.AdamW(model.parameters()))
    >>> loss = optimizer.step(lambda: torch.nn.functional.mse_loss(model(inputs), targets))
    >>> optimizer.last_search.evaluations >= 1
    True
    """

    NUMBERS: ClassVar[dict[str, float | int]] = {
        name: NUMBERS[name]
        for name in ("step_size", "average", "steps", "skipped", "rejected_fits", "start_checks")
    } | {**Capped()._asdict(), **Lift()._asdict()}

    _workspace: Displacement | None
    _is_being_made = False  # when torch's constructor begins with no groups and no state

    def __init__(
        self,
        base: Optimizer,
        *,
        max_relative_step: float = 0.005,
        fit: Fit = two_point,
        max_fits: int = 3,
        search_prob: float = 0.1,
        smoothing: float = 0.5,
        full_steps: float = 1000,
        model: nn.Module | None = None,
        seed: int = 0,
        process_group: ProcessGroup | None = None,
        search: SearchRule | None = None,
    ) -> None:
        refuse_unsuitable(base)
        rho = max_relative_step
        use = "Use a positive number such as 0.005: a step is measured by the weights alone."
        require("max_relative_step", rho, rho is not None and 0.0 < rho < math.inf, use)
        require("full_steps", full_steps, full_steps > 0, "Use a number such as 1000.")
        self.base, self.full_steps = base, full_steps
        self.options = SearchOptions(
            max_relative_step=max_relative_step,
            fit=fit,
            max_fits=max_fits,
            search=search,
            search_prob=search_prob,
            smoothing=smoothing,
            seed=seed,
            descent_suffices=True,
        )
        defaults = dict(getattr(base, "defaults", {}))
        self._is_being_made = True
        super().__init__(base.param_groups, defaults, model, process_group)
        self._is_being_made = False
        self.__setstate__({})

    # The groups and the state are the base's. Torch's constructor would begin with none.
    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the base."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        if not self._is_being_made:
            self.base.param_groups = groups
            self.__setstate__({})

    @property
    def state(self) -> Any:
        """That of the base."""
        return self.base.state

    @state.setter
    def state(self, state: Any) -> None:
        if not self._is_being_made:
            self.base.state = state
            self.__setstate__({})

    def __getattr__(self, name: str) -> Any:
        """The base's modes, if it has any."""
        if name in MODES and "base" in self.__dict__:
            return getattr(self.base, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        self._forget_last_step()
        everything = self.__dict__ | super().__getstate__()
        return {name: everything[name] for name in COPIED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        note_full_rates(self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base."""
        if not any(param_group is group for group in self.param_groups):
            self._meet_groups()
            self._guard.read_losses(self.param_groups)
            self.base.add_param_group(param_group)
            self.__setstate__({})

    def state_dict(self) -> dict[str, Any]:
        """The base's, whose groups hold the numbers of the search."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        self._meet_groups()
        self._guard.read_losses(self.param_groups)
        self._forget_last_step()
        for group in self.param_groups:
            group.update(read(group, self.NUMBERS))
        state = self.base.state_dict()
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, state)
            state = state if changed is None else changed
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave, of this or of a bare optimizer like the base."""
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        self.base.load_state_dict(state_dict)
        self.__setstate__({})
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _forget_last_step(self) -> None:
        """No checkpoint or copy holds it, so this run goes on as one will that begins there."""
        if self._workspace is not None:
            self._workspace.holds_last_step = False

    @property
    def _ceiling(self) -> RelativeCeiling:
        rho, guarded = self.options.max_relative_step or 0.0, self.options.is_guarded
        return RelativeCeiling(rho, self.full_steps, guarded)

    def _complete_groups(self) -> None:
        self._ceiling.complete(self.param_groups)
        super()._complete_groups()

    def _meet_groups(self) -> None:
        """The base may have been given other groups, or rates, behind our back."""
        newest = Region._fields[-1] if self.options.is_guarded else "full_lr"
        if not all("full_lr" in group and newest in group for group in self.param_groups):
            self._complete_groups()  # the base may have loaded an older checkpoint too
        note_full_rates(self.param_groups)
        refuse_strays(self.param_groups, OPTIONS - getattr(self.base, "defaults", {}).keys())

    def _take_step(
        self, objective: Objective | None, loss: Tensor | float | None, rollback: Rollback
    ) -> Outcome | None:
        self._meet_groups()
        groups, (numbers, params) = self.param_groups, with_gradients(self.param_groups)
        if not params:
            return None
        displacement = self._workspace
        if displacement is None or not displacement.serves(params):
            one_line = [0] * len(params)  # the same for all groups
            layout = Layout(params, one_line, reduction(params, self._ranks))
            displacement = self._workspace = Displacement(layout)
        due = objective is not None and loss is not None and self._is_due()
        factor, first = schedule(groups), not self.state
        rho = factor * self._ceiling.now(groups[0], loss, displacement.layout)
        grads, recorded = displacement.layout.gradients(), None
        if self._team is None:
            recorded = RecordedBase.of(self.base, displacement, grads, numbers)
        if not due:  # no copy is made of the base's state then
            rollback.interrupts.hold()
        if recorded is not None and not due:
            replayed = recorded.unsearched_step(loss, rho, self.options, rollback)
            if replayed is not None:
                return replayed
        kind = BaseUpdate if displacement.layout.on_host else DeviceBaseUpdate
        update = kind(
            displacement,
            grads,
            self._gradients.unclipped(params),
            loss,
            rho=rho,
            maximize=bool(groups[0].get("maximize")),
            searched=due,
            options=self.options,
            ranks=self._team,
            before=groups[0],
        )
        outcome = SKIPPED
        if not update.is_lost:
            if due or first:  # before the first step there is nothing to copy
                rollback.callback(
                    keep_state(self.base, recorded, self._params(), displacement.copier)
                )
            update.begin()
            rollback.callback(displacement.undo)
            with at_lifted_rates(groups, groups[0]["lift"]):
                update.update(self.base.step if recorded is None else recorded.step)
            outcome = self._moved(update, self.options, objective, loss, rollback, due=due)
        # Not a step where distributed checkpoints ask for a first state.
        is_first_and_idle = objective is None and not factor and first and update.is_idle
        return None if is_first_and_idle else outcome

    def _record(self, outcome: Outcome | None, objective: Objective | None) -> None:
        super()._record(outcome, objective)
        if outcome is not None and self._workspace is not None:
            self._ceiling.judge(outcome, self.param_groups, self._workspace.layout)
        applied = None if outcome is None else outcome.numbers.get("step_size")
        if isinstance(applied, float) and self._workspace is not None:
            most = self._workspace.layout.range / max(1.0, *rates(self.param_groups))
            lift = self._lift.after(applied, most)
            for group in self.param_groups:
                group.update(lift._asdict())

    @property
    def _own_numbers(self) -> dict[str, float | int]:
        return super()._own_numbers | self._ceiling.numbers

    def _ratios(self) -> list[float]:
        return [self._lift.lift * rate for rate in rates(self.param_groups)]

    @property
    def _lift(self) -> Lift:
        return Lift(*(self.param_groups[0][name] for name in Lift._fields))

    def _is_due(self) -> bool:
        return self.options.search_prob > 0.0 and super()._is_due()
