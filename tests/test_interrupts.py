"""Ctrl-C at any line of a step: it is taken as a whole, or not at all."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cgq import CGQ, LineSearch
from cgq.engine.interrupts import HeldInterrupts

EVERY = 23  # lines: all of them take half a minute for each optimizer
KINDS: dict[str, Callable[[Iterable[Tensor]], Any]] = {
    "searched": lambda params: CGQ(params),
    "with decay": lambda params: CGQ(params, weight_decay=0.01),
    "heavy ball": lambda params: CGQ(params, momentum=0.5, weight_decay=0.01),
    "decoupled": lambda params: CGQ(params, weight_decay=0.01, decoupled_weight_decay=True),
    "not searched": lambda params: CGQ(params, search_prob=1e-9, weight_decay=0.01),
    "base": lambda params: LineSearch(torch.optim.AdamW(params)),
    "base, not searched": lambda params: LineSearch(torch.optim.AdamW(params), search_prob=0.0),
}


class Run:
    """Two steps into a training."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.inputs = torch.randn(8, 3)
        self.optimizer = KINDS[kind](self.model.parameters())
        for _ in range(2):
            self.step()

    def step(self) -> None:
        self.optimizer.step(lambda: self.model(self.inputs).square().mean())

    def facts(self) -> str:
        """Weights and state, to the last digit."""
        state = self.optimizer.state_dict()
        values = [value for entry in state["state"].values() for value in entry.values()]
        tensors = [*self.model.state_dict().values(), *map(torch.as_tensor, values)]
        return str([tensor.tolist() for tensor in tensors]) + str(state["param_groups"])


def interrupted(run: Run, line: int) -> bool:
    """Take a step that is interrupted at this line of the package; False: it has fewer."""
    lines = 0

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal lines
        if not frame.f_globals.get("__name__", "").startswith("cgq."):
            return None
        lines += event == "line"
        if event == "line" and lines == line:
            signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run.step()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    assert lines < line, "the interrupt was lost"
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_taken_as_a_whole_or_not_at_all(kind: str) -> None:
    before, run = Run(kind).facts(), Run(kind)  # to look at a state ends what is not saved of it
    run.step()
    after = run.facts()
    assert before != after
    found, line = [], 1
    while interrupted(run := Run(kind), line):
        found.append(run.facts())
        assert found[-1] in (before, after), line
        line += EVERY
    assert {before, after} == set(found)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_raises_while_a_step_is_remembered_leaves_weights_that_are_right() -> None:
    """As a timer's signal may; there is no way back from there."""
    run = Run("with decay")
    run.step()
    after = [param.detach().clone() for param in run.model.parameters()]
    run = Run("with decay")
    state = run.optimizer._workspace
    remember = state.remember

    def timed_out(*arguments: Any) -> None:
        remember(*arguments)
        raise TimeoutError

    state.remember = timed_out
    with pytest.raises(TimeoutError):
        run.step()
    assert all(map(torch.equal, run.model.parameters(), after))


def test_only_the_first_is_told_and_to_whom_it_was_meant_for() -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        with HeldInterrupts() as interrupts:
            interrupts.hold()
            interrupts.hold()
            for _ in range(3):
                signal.raise_signal(signal.SIGINT)
            assert told == []
        assert told == [signal.SIGINT]
        signal.raise_signal(signal.SIGINT)
        assert len(told) == 2
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_who_is_not_to_hear_of_them_does_not(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with HeldInterrupts() as interrupts:
            interrupts.hold()
            assert signal.getsignal(signal.SIGINT) is handler
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_one_step_within_another() -> None:
    with pytest.raises(KeyboardInterrupt), HeldInterrupts() as outer:
        outer.hold()
        with HeldInterrupts() as inner:
            inner.hold()
            signal.raise_signal(signal.SIGINT)
        passed = True
    assert passed


def test_other_threads_train_too() -> None:
    weights: list[list[Tensor]] = []

    def train() -> None:
        run = Run("with decay")
        run.step()
        weights.append([param.detach() for param in run.model.parameters()])

    train()
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert all(map(torch.equal, *weights))
