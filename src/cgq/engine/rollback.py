"""What is restored if a step raises or is skipped."""

from __future__ import annotations

from contextlib import ExitStack

from cgq.engine.interrupts import HeldInterrupts


class Rollback(ExitStack):
    """Functions that take back what a step has done so far, the last first.

    Leaving the block calls them, with or without an exception, unless the step was taken:
    `pop_all()` says so. Those of a step put back random generators and buffers
    (`evaluation/environment.py`), parameters (`vectors/line.py`), a base's state
    (`evaluation/snapshots.py`), and state that is new.

    >>> with Rollback() as rollback:
    ...     _ = rollback.callback(print, "the generators are as before")
    ...     _ = rollback.callback(print, "the parameters are as before")
    the parameters are as before
    the generators are as before
    """

    def __init__(self, interrupts: HeldInterrupts | None = None) -> None:
        super().__init__()
        self.interrupts = interrupts or HeldInterrupts()
        """Held back from when something is done that cannot be taken back."""
