"""Which message a run calls for, by what became of its steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cgq.engine.direction import Outcome
from cgq.engine.messages import (
    CLASSIC,
    CONSTANT,
    FORGOTTEN,
    FROZEN,
    IN_LIGHTNING,
    LOST,
    NOT_REPEATED,
    OTHER_DRAWS,
    RAISED,
    RUINED,
    STUCK,
    UNSEARCHED,
    UNSEEN,
    Messages,
)
from cgq.engine.options import SearchOptions
from cgq.engine.run_guard import has_seen_no_loss
from cgq.evaluation.closure_kinds import Closure, is_lightning_s
from cgq.evaluation.objective import Objective

BARE = 10  # steps without a closure after which none is to be expected
CONSTANTS = 10  # searches in a row whose trials all had the same loss


class Advice(Messages):
    """What one optimizer has to tell, each once."""

    def __init__(self) -> None:
        super().__init__()
        self._constant_in_a_row = 0
        self._was_blind = False  # whether the last step that was not lost saw a batch unsearched

    def on_missing_losses(self, group: dict[str, Any], options: SearchOptions) -> None:
        """After a step that saw no loss."""
        if options.is_guarded:
            if has_seen_no_loss(group):
                self.give(UNSEEN)
        elif group["steps"] >= BARE and not group["average"] and options.search_prob:
            self.give(UNSEARCHED)

    def on_closure(
        self,
        closure: Closure,
        objective: Objective,
        outcome: Outcome | None,
        params: Sequence[Tensor],
        *,
        is_first: bool,
    ) -> None:
        """After a step on a closure; without an outcome it left nothing to do."""
        if objective.runs_backward and outcome is not None and outcome.due:
            self.give(IN_LIGHTNING if is_lightning_s(closure) else CLASSIC)
        if objective.draws_differ:
            self.give(OTHER_DRAWS)
        if outcome is None and is_first:  # a batch may be left out later
            trains = any(param.requires_grad for param in params)
            self.give(FORGOTTEN if trains else FROZEN)

    def on_outcome(
        self,
        outcome: Outcome,
        objective: Objective | None,
        options: SearchOptions,
        *,
        lost_many: bool,
        is_stuck: bool,
    ) -> None:
        """After a step, taken or skipped."""
        if outcome.skipped is not True:  # though a device may have skipped it
            self._was_blind = outcome.loss is not None and outcome.search is None
        if lost_many:
            blind = self._was_blind and not options.is_guarded
            ruined = blind and not math.isfinite(outcome.loss or 0.0)
            self.give(RUINED if ruined else LOST)
        if is_stuck:
            self.give(STUCK)
        if outcome.search is not None:
            self._constant_in_a_row = self._constant_in_a_row + 1 if outcome.is_constant else 0
            if self._constant_in_a_row == CONSTANTS:
                self.give(CONSTANT)
        if outcome.raised:
            self.give(RAISED, error=outcome.raised)
        draws_differ = objective is not None and objective.draws_differ
        if outcome.repeats is False and not draws_differ:
            self.give(NOT_REPEATED)
