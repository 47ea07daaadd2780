"""Ctrl-C waits while a step changes what it has no copy of: it is taken as a whole, or not."""

from __future__ import annotations

import signal
import threading
from typing import Any


class HeldInterrupts:
    """From `hold` on an interrupt waits until the block is over, or until `release`.

    Python may raise KeyboardInterrupt between any two operations. A program that catches it, as
    notebooks and skorch do, goes on with what the step has left. Only the main thread is ever
    interrupted.

    >>> try:
    ...     with HeldInterrupts() as interrupts:
    ...         interrupts.hold()
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("all of it is done")
    ... except KeyboardInterrupt:
    ...     print("then it is interrupted")
    all of it is done
    then it is interrupted
    """

    def __init__(self) -> None:
        self._handler: Any = None  # whose turn it is when they are released
        self._held: list[tuple[Any, ...]] = []

    def hold(self) -> None:
        """Let interrupts wait, if anybody is to hear of them."""
        if self._handler is None and threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):  # not where it ends the process, is ignored, or is not Python's
                self._handler = handler
                signal.signal(signal.SIGINT, self._keep)

    def _keep(self, *interrupt: Any) -> None:
        self._held.append(interrupt)

    def release(self) -> None:
        """Tell of the first that was held."""
        handler, self._handler = self._handler, None
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
            held, self._held = self._held, []
            for interrupt in held[:1]:
                handler(*interrupt)

    def __enter__(self) -> HeldInterrupts:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
