"""Steps along the conjugate direction that become recordings: on CUDA they are few launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import Tensor

from cgq.engine.device_conjugate import DeviceConjugate
from cgq.engine.device_direction import as_results, outcome_of, recorded_plan
from cgq.engine.direction import Outcome, Plan
from cgq.rules.momentum import OURS
from cgq.rules.scalars import Number
from cgq.vectors import one_pass
from cgq.vectors.device_line import DeviceLine
from cgq.vectors.formula import formula
from cgq.vectors.products import FormulaVector
from cgq.vectors.recording import Recording


class KeptConjugate(DeviceConjugate):
    """The direction with all its vectors in memory that stays, for a recording."""

    @staticmethod
    def taken(number: Tensor) -> Number:
        """A number that comes in."""
        return number

    def _theta_parts(self) -> Callable[[], Any]:
        state, snapshot = self._state, cache(self._state.kept_parameters)
        self._snapshot = snapshot
        return lambda: (state.own_memory() or snapshot()).parts

    def line(self, plan: Plan) -> DeviceLine:
        return self._line_from(self._snapshot(), plan, self._state.place_for_points())


class FormulaConjugate(KeptConjugate):
    """The same, and one kernel decides: its numbers are formulas."""

    vector = FormulaVector
    taken = staticmethod(formula)

    def _phi_0(self, loss: Tensor | float | None) -> Number:
        return formula(super()._phi_0(loss))


class RecordedConjugate(DeviceConjugate):
    """The direction whose steps are recorded once they have come often enough."""

    def unsearched_step(self, loss: Tensor | float | None, limit: Number = math.inf) -> Outcome:
        """As every direction; where such a step has come often enough, all of it at once."""
        outcome = self._replayed(loss, limit)
        return super().unsearched_step(loss, limit) if outcome is None else outcome

    def _replayed(self, loss: Tensor | float | None, limit: float) -> Outcome | None:
        """The step as a recording; None: it is still to be taken."""
        state, before, recording = self._state, self._before, self._state.unsearched
        if not self._may_record(recording):
            return None
        numbers = self._numbers_of(loss) | {
            "average": before["average"] or None,
            "limit": None if limit == math.inf else limit,
        }
        kept = self._kept()

        def work(now: Mapping[str, Tensor]) -> dict[str, Number]:
            direction, limit = kept(now), now.get("limit", math.inf)
            return as_results(direction.unsearched_step(now.get("loss"), limit))

        if not recording.done(self._key, _known(numbers), work):
            return None
        state.squares = None  # nobody here knows whose they are
        return outcome_of(recording.handed_out())

    def begun_at_once(self, loss: Tensor | float, error: float) -> tuple[Plan, DeviceLine] | None:
        state, recording = self._state, self._state.outset
        if self._unclipped is not None or not self._may_record(recording):
            return None
        numbers = self._numbers_of(loss) | {"trial_scale": self._before["trial_scale"]}
        kept, key, spans = self._kept(), (*self._key, error), len(self.layout.spans)
        squares = [f"square {index}" for index in range(spans)]
        # Whether they are known is part of the key: it is to be the same in every step.
        known = self._dots.get(("h", "h")) if self._options.search_prob >= 1.0 else None
        if known is not None:
            numbers |= dict(zip(squares, known, strict=True))

        def begun(now: Mapping[str, Tensor]) -> tuple[Plan, DeviceLine, dict[str, Number]]:
            direction = kept(now)
            if known is not None:
                direction._dots["h", "h"] = [direction.taken(now[name]) for name in squares]
            plan, line = direction.begun(now["loss"], error)
            return plan, line, dict(zip(squares, direction._dots["g", "g"], strict=True))

        plan = recorded_plan(recording, key, _known(numbers), begun)
        state.squares = None  # only of a batch that will be remembered are they known
        if plan is None:
            return None
        self._dots["g", "g"] = [recording.results[name] for name in squares]
        self._residual = self._in_scratch
        return plan, self._line_from(state.start, plan, state.place_for_points())

    def _may_record(self, recording: Recording) -> bool:
        momentum = self._options.momentum
        may_read = callable(momentum) and not any(momentum is rule for rule in OURS)
        return self.ranks is None and not may_read and recording.is_possible

    @property
    def _key(self) -> tuple[object, ...]:
        """All that the host decides about a recording, but for its numbers."""
        state, gathered = self._state, self._gathered
        state.own_memory()  # which finds out where they are
        places = None if gathered is state.scratch else state.gradients.places
        return state.parameters.places, places, tuple(self._shares), self._options

    def _numbers_of(self, loss: Tensor | float | None) -> dict[str, Number]:
        return {
            "beta": self._before["beta"],
            "direction_bound": self._before["direction_bound"],
            "ceiling": self._max_step,
            "rho": self._rho,
            "loss": loss,
        }

    def _kept(self) -> Callable[[Mapping[str, Tensor]], KeptConjugate]:
        """Makes such a direction, by other numbers, in memory that stays."""
        state, gathered, shares, options = self._state, self._gathered, self._shares, self._options

        def kept(now: Mapping[str, Tensor]) -> KeptConjugate:
            state.squares = None  # a later step may not know them
            kind = FormulaConjugate if one_pass.serves(state.layout) else KeptConjugate
            taken = {name: kind.taken(number) for name, number in now.items()}
            return kind(
                state,
                gathered.views,
                None,
                shares,
                taken["ceiling"],
                taken.get("rho"),
                options=options,
                ranks=None,
                before={"average": 0.0, **taken},
            )

        return kept


def _known(numbers: Mapping[str, Number | None]) -> dict[str, Number]:
    return {name: number for name, number in numbers.items() if number is not None}
