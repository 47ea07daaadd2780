"""Work that repeats itself on memory that stays: captured once, then launched at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from cgq.rules import scalars
from cgq.rules.scalars import Number, scalar_dtype, stacked

REPEATS = 3  # of a key before a capture, the last of them with the kernels that are to be captured
MOST = 96  # by when a capture costs little beside the steps since the last

Work = Callable[[Mapping[str, Tensor]], Mapping[str, Number]]
"""Makes numbers of numbers, and whatever else it does to memory that stays."""


class Recorder(Protocol):
    """Captures work on a device."""

    device: torch.device

    @property
    def is_busy(self) -> bool:
        """Whether somebody is capturing already: nothing can be captured or replayed then."""

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """What does the work anew each time it is called; here none of it is done."""


class Recording:
    """Work that is left to the caller at first, and replayed once its key has come often enough.

    A key that comes now and then in between, as that of an epoch's last batch may, changes nothing.

    Args:
        recorder: None: all is left to the caller.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._key: object = None  # of what is recorded
        self._numbers: Numbers | None = None
        self._replay: Callable[[], None] | None = None
        self._other: object = None  # the last key that was another
        self._times = 0  # that it has come in a row
        self._repeats = REPEATS
        self._failed: object = None
        self.version = 0
        """Another one where `results` are other tensors."""

    @property
    def is_possible(self) -> bool:
        """Whether it is worth making a key."""
        return self._recorder is not None and not self._recorder.is_busy

    def done(self, key: object, numbers: Mapping[str, Number], work: Work) -> bool:
        """Do the work with these numbers; False: nothing was done, and the caller is to do it.

        The key is all that the host decides about the work, but for the values of the numbers.
        `numbers` of which the work gives new ones by the same names are its state: what
        `handed_out` gave of them is on the device already, and so are `results` until the next
        time.
        """
        recorder = self._recorder
        if recorder is None or recorder.is_busy:
            return False
        key = key, *numbers
        is_new = self._numbers is None or key != self._key
        if is_new:
            if not self._has_come_often(key):
                return False
            self._begin(key, Numbers(recorder.device, list(numbers)))
        self._other, kept = None, self._numbers
        assert kept is not None
        kept.write(numbers)
        if is_new:
            # A kernel that is launched for the first time may be loaded, which no capture allows.
            kept.put_through(work)
        elif self._replay is None and not self._has_captured(recorder, kept, work):
            return False
        else:
            assert self._replay is not None
            self._replay()
        kept.have_changed()
        return True

    def _has_come_often(self, key: object) -> bool:
        if key != self._other:
            self._other, self._times = key, 0
        self._times += 1
        return self._times >= self._repeats and key != self._failed

    def _begin(self, key: object, numbers: Numbers) -> None:
        if self._replay is not None:  # what changes now and then is not worth many captures
            self._repeats = min(2 * self._repeats, MOST)
        self._key, self._numbers, self._replay = key, numbers, None
        self.version += 1

    def _has_captured(self, recorder: Recorder, kept: Numbers, work: Work) -> bool:
        try:
            self._replay = recorder.captured(lambda: kept.put_through(work))
        except RuntimeError:  # what was captured until then has not been done
            self._failed, self._numbers = self._key, None
        return self._replay is not None

    @property
    def results(self) -> Mapping[str, Tensor]:
        """What the work gave; the next time overwrites it."""
        return {} if self._numbers is None else self._numbers.results

    def read(self) -> list[float]:
        """The same as floats, in their order: the host waits for them."""
        return [] if self._numbers is None else self._numbers.read()

    def handed_out(self) -> dict[str, Tensor]:
        """The same as tensors that nobody overwrites."""
        return {} if self._numbers is None else self._numbers.handed_out()


class Numbers:
    """The numbers that go into a work and come out of it, in memory that stays.

    >>> numbers = Numbers(torch.device("cpu"), ["factor", "sum"])
    >>> numbers.write({"factor": 2.0, "sum": 1.0})
    >>> numbers.put_through(lambda now: {"sum": now["factor"] + now["sum"]})
    >>> numbers.handed_out()
    {'sum': tensor(3., dtype=torch.float64)}
    """

    def __init__(self, device: torch.device, names: Sequence[str]) -> None:
        self._device, dtype = device, scalar_dtype(device)
        self._inputs = torch.zeros(len(names), dtype=dtype, device=device)
        self._slots = dict(zip(names, self._inputs.unbind(), strict=True))
        self._places = {name: place for place, name in enumerate(names)}
        # What is known to lie in each slot: a float, or a tensor that was handed out.
        self._held: list[object] = [None] * len(names)
        self._outputs: Tensor | None = None
        self.results: dict[str, Tensor] = {}

    def write(self, numbers: Mapping[str, Number]) -> None:
        """Put these into the slots, neighbouring floats with one copy."""
        values, start = map(_read, numbers.values()), 0
        slots = list(self._slots.values())
        for on_device, group in groupby(values, lambda value: isinstance(value, Tensor)):
            run = list(group)
            places = slice(start, start + len(run))
            known = list(map(_is, run, self._held[places]))
            if on_device:
                for place, (value, is_there) in enumerate(zip(run, known, strict=True), start):
                    if not is_there:  # nor is it later: its owner may overwrite it
                        slots[place].copy_(value.reshape(()))
                        self._held[place] = None
            elif not all(known) and len(run) == 1:  # a kernel is launched sooner than a copy
                slots[start].fill_(run[0])
                self._held[start] = run[0]
            elif not all(known):
                # The host does not wait for so little, although it is in no pinned memory.
                floats = torch.tensor(run, dtype=self._inputs.dtype)
                self._inputs[places].copy_(floats, non_blocking=True)
                self._held[places] = run
            start = places.stop

    def put_through(self, work: Work) -> None:
        """Do the work, and keep what it gives; of its state also as what the next time begins."""
        results = work(self._slots)
        if not results:
            return
        if self._outputs is None:
            self._outputs = torch.empty(len(results), dtype=self._inputs.dtype, device=self._device)
            self.results = dict(zip(results, self._outputs.unbind(), strict=True))
        stacked(self._device, *results.values(), out=self._outputs)
        if state := self._state:
            slots = [self._slots[name] for name in state]
            torch._foreach_copy_(slots, [self.results[name] for name in state])

    @property
    def _state(self) -> list[str]:
        return [name for name in self.results if name in self._slots]

    def have_changed(self) -> None:
        """The work was done: slots of its state hold what it gave."""
        for name in self._state:
            self._held[self._places[name]] = self.results[name]

    def read(self) -> list[float]:
        """The results as floats."""
        numbers: list[float] = [] if self._outputs is None else self._outputs.tolist()
        return numbers

    def handed_out(self) -> dict[str, Tensor]:
        """Copies of the results."""
        if self._outputs is None:
            return {}
        copies = dict(zip(self.results, self._outputs.clone().unbind(), strict=True))
        for name in self._state:
            self._held[self._places[name]] = copies[name]
        return copies


def _read(number: Number) -> Number:
    """A tensor on the host as the float it is: reading it is free."""
    is_near = isinstance(number, Tensor) and scalars.is_host(number.device)
    return number.item() if is_near else number


def _is(number: Number, held: object) -> bool:
    """Whether a slot that holds this need not be written."""
    if isinstance(number, Tensor) or isinstance(held, Tensor):  # which to compare is to wait for
        return number is held
    return bool(number == held)
