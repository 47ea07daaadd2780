"""LineSearch: the search and the relative ceiling around any optimizer."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from cgq import wrappable
from cgq.around import Around
from cgq.flat import Layout, with_gradients
from cgq.geometry import Shape
from cgq.kept import Kept
from cgq.objective import Objective
from cgq.options import Options, check_length
from cgq.parabola import Fit, two_point
from cgq.policy import Lift
from cgq.progress import DEFAULTS, Progress
from cgq.proposal import Displacement, Proposal
from cgq.rates import at_lifted_rates, fading, rates, schedule
from cgq.shards import whole_of
from cgq.step import Outcome, Step

WHOLE_LINE = [Shape(ratio=1.0, coupled=0.0, decoupled=0.0)]


class LineSearch(Around):
    r"""Any optimizer without its learning rate: its direction, a measured length.

    .. math::
        d_t = \text{the update of } base, \quad
        θ_{t+1} = θ_t + α_t d_t, \quad
        α_t = s_t \cdot ρ \min\!\left(1, \sqrt{T/t}\right) \frac{‖θ_t‖}{‖d_t‖},

    where the share :math:`s_t ≤ 1` of the ceiling is found by a parabola along d on some batches
    and averaged over them, and T is `full_steps`. The base's moments advance exactly once a step.

    Args:
        base: the optimizer that gives the direction, of `torch.optim` or like one. Its `lr` counts
            only as a rate between its groups, and for schedulers.
        max_relative_step: ρ, the longest step relative to the weights.
        fit: `two_point`, `least_squares`, or a function like them.
        max_fits: how many parabolas at most; a search costs at most one evaluation more.
        search_prob: the share of batches that are searched while all is well; every batch is at
            first, while the share moves and while the loss rises. 0: none ever, the share is 1.
        smoothing: the part of the old share that is kept when a search has found a new one.
        full_steps: steps that may use all of ρ; from then on noise has to die away, for an average
            of the weights to find their middle. `math.inf`: all may.
        model: the module whose buffers a probe must not change; None: those called by the closure,
            which a module compiled in place or a compiled function hides. Not copied or pickled.
        seed: decides which batches are searched.
        process_group: the ranks that share the model; None: all of them.

    The parameter groups are those of `base`, and so is the state: a checkpoint of one loads into
    the other. A scheduler on either changes `lr`, and the ceiling with it by what share `lr` then
    is of the largest it has been. After each step `group["step_size"]` is the
    effective rate and `last_search` what the search saw, in multiples of the update that the base
    proposed. `group["skipped"]` and `group["rejected_fits"]` are as with `CGQ`.

    Along an update that climbs on this batch, as momentum makes some, nothing is searched: the
    average share is used. A step that is skipped or raises leaves parameters, buffers and
    generators as they were, and the base's state too; but for a base that itself raises in a step
    that is not searched, and, on an accelerator, a gradient that is not finite in such a step: the
    base then sees zeros, because the host does not look.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> inputs, targets = torch.randn(8, 3), torch.randn(8, 1)
    >>> optimizer = LineSearch(torch.optim.AdamW(model.parameters()))
    >>> loss = optimizer.step(lambda: torch.nn.functional.mse_loss(model(inputs), targets))
    >>> optimizer.last_search.evaluations >= 1
    True
    """

    NUMBERS: ClassVar[dict[str, float | int]] = {
        **{name: DEFAULTS[name] for name in ("step_size", "average", "steps")},
        **{name: DEFAULTS[name] for name in ("skipped", "rejected_fits")},
        **Lift()._asdict(),
    }

    KEPT = (*Around.KEPT, "full_steps")

    _memory: Displacement | None

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
    ) -> None:
        wrappable.check(base)
        check_length(max_relative_step, full_steps)
        self.full_steps = full_steps
        self.options = Options(
            max_relative_step=max_relative_step,
            momentum=0.0,
            max_momentum=0.0,
            nesterov=False,
            decoupled_weight_decay=False,
            fit=fit,
            max_fits=max_fits,
            probe=None,
            search_prob=search_prob,
            smoothing=smoothing,
            seed=seed,
            maximize=False,
        )
        super().__init__(base, model, process_group)

    def _take_step(self, objective: Objective | None, loss: Tensor | float | None) -> None:
        self._meet_groups()
        _, params = with_gradients(self.param_groups)
        if not params:
            return
        if self._memory is None or not self._memory.serves(params):
            groups = [0] * len(params)  # one line, the same for all
            self._memory = Displacement(Layout(params, groups, whole_of(params, self._ranks)))
        memory, grads = self._memory, self._memory.layout.gradients()
        due = objective is not None and loss is not None and self._is_due()
        factor, first = schedule(self.param_groups), not self.state
        fade = fading(self.param_groups[0]["steps"], self.full_steps)
        shared: dict[str, Any] = {
            "options": self._options_with(loss),
            "ranks": self._ranks,
            "progress": Progress.of(DEFAULTS | self._numbers_of(self.param_groups[0])),
        }
        proposal = Proposal(
            memory,
            grads,
            self._caller.unclipped.gradients(params),
            loss,
            schedule=factor * fade,
            maximize=bool(self.param_groups[0].get("maximize")),
            searched=due,
            **shared,
        )
        if memory.layout.on_host and not proposal.is_finite:
            outcome = Outcome(shared["progress"], skipped=True)
        else:
            # Before the first step there is nothing to copy.
            kept = Kept(self.base) if due or first else None
            step = Step(memory, grads, WHOLE_LINE, proposal, **shared)
            memory.begin()
            try:
                self._let_base_move(proposal)
                if due or memory.layout.on_host:
                    memory.undo()
                outcome = self._moved(step, objective, loss, due)
            except BaseException:
                memory.undo()
                if kept is not None:
                    kept.restore()
                raise
            if outcome.skipped is True and kept is not None:
                kept.restore()
        # Not a step where distributed checkpoints ask for a first state.
        if objective is not None or factor or not first or not proposal.is_idle:
            self._finish(objective, outcome)

    def _let_base_move(self, proposal: Proposal) -> None:
        assert self._memory is not None
        if not self._memory.layout.on_host:
            proposal.withhold_unless_finite()
        with at_lifted_rates(self.param_groups, self.param_groups[0]["lift"]):
            self.base.step()
        self._memory.end()

    def _finish(self, objective: Objective | None, outcome: Outcome) -> None:
        if objective is not None and outcome.skipped is not False:
            if isinstance(outcome.skipped, Tensor):
                objective.undo_buffers_where(outcome.skipped)
            else:
                objective.undo()
        first, applied = self.param_groups[0], outcome.progress.step_size
        lift = Lift(*(first[name] for name in Lift._fields))
        given = rates(self.param_groups)
        self._record(outcome, [lift.lift * rate for rate in given])
        if outcome.skipped is False and not isinstance(applied, Tensor):
            assert self._memory is not None
            lift = lift.after(applied, most=self._memory.layout.range / max(1.0, *given))
            for group in self.param_groups:
                group.update(lift._asdict())

    def _write(self, outcome: Outcome, group: dict[str, Any], ratio: float) -> None:
        numbers = DEFAULTS | self._numbers_of(group)
        outcome.progress.write(numbers, ratio)
        group.update({name: numbers[name] for name in self.NUMBERS})

    def _is_due(self) -> bool:
        return self.options.search_prob > 0.0 and super()._is_due()

    def _numbers_of(self, group: dict[str, Any]) -> dict[str, Any]:
        return {name: group[name] for name in self.NUMBERS}
