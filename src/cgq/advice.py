"""What the user of a closure is told, once."""

from __future__ import annotations

import warnings

from cgq.closure import Objective

CLASSIC = (
    "This closure runs backward() itself, so every probe of the line search pays for a backward "
    "pass. Let it only return the loss, and the optimizer will call backward() once per step; or "
    "write closure(backward) and call backward() only when asked."
)
DROPPED = (
    "The gradients that backward() put into .grad before step(closure) do not count: the closure "
    "makes its own. To accumulate, run every micro-batch in closure(backward). If they were not "
    "meant to count, call zero_grad() before step()."
)


class Advice:
    """Warnings to one optimizer's user, given when its `step` calls these methods."""

    def __init__(self) -> None:
        self._told = self._looked = False

    def on_dropped(self, objective: Objective) -> None:
        """Before a step: the closure's gradients would have been added to others."""
        if objective.dropped and not self._looked:
            self._looked = True  # only once: on an accelerator the host waits for the norms
            if any(bool(grad.norm()) for grad in objective.dropped):
                warnings.warn(DROPPED, UserWarning, stacklevel=7)

    def on_search(self, objective: Objective) -> None:
        """Before a search: its probes run backward."""
        if objective.runs_backward and not self._told:
            self._told = True
            warnings.warn(CLASSIC, UserWarning, stacklevel=6)
