"""What is recorded of a base optimizer, and the memory that belongs to it."""

from __future__ import annotations

from torch import Tensor

from cgq.engine.recordable import Fixed
from cgq.vectors.recording import Recorder, Recording


class BaseRecordings:
    """Three recordings, with what they write to: held, so that nobody else gets that memory."""

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self.forget()
        self._seen: object = None

    def forget(self) -> None:
        """Give back what is held."""
        self.whole = Recording(self._recorder)
        """Of the step that is not searched, all of it."""
        self.stepping = Recording(self._recorder)
        """Of the base's own step, where a search follows."""
        self.of_whole: list[Tensor] = []
        self.of_stepping: list[Tensor] = []
        self._recorded: object = None
        self.fixed: Fixed | None = None
        """What the last step took to stay as it is."""
        self.keep_elsewhere([], [])

    def keep_elsewhere(self, kept: list[Tensor], copies: list[Tensor]) -> None:
        """Copy these to those from now on, before a search."""
        self.kept, self.copies = kept, copies
        self.keeping = Recording(self._recorder)

    @property
    def is_possible(self) -> bool:
        """Whether it is worth looking."""
        return self.whole.is_possible

    def comes_again(self, sight: object) -> bool:
        """Whether a step looks like the one before it, or like one that is recorded."""
        was_seen = sight in (self._seen, self._recorded)
        self._seen = sight
        return was_seen

    def note_recorded(self) -> None:
        """Know the step that was looked at last again, whatever comes in between."""
        self._recorded = self._seen
