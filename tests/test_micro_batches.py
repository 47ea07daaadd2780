"""Passes that a host has run leave all modules they call as a plain loop does, to the last bit."""

from __future__ import annotations

import math
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_accelerator import as_accelerator
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_pre_hooks

from cgq import CGQ, LineSearch
from cgq.hosts.inputs import Inputs
from cgq.hosts.micro_batches import MicroBatches

Loss = Callable[[Tensor], Tensor]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1))


class Centre(nn.Module):
    """A loss that follows what it sees, and whose teacher fades."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("centre", torch.zeros(1))

    def forward(self, outputs: Tensor) -> Tensor:
        with torch.no_grad():
            self.calls += 1
            self.centre.lerp_(outputs.mean(0), 0.1)
            self.teacher.mul_(0.9)
        return (outputs - self.centre - self.teacher).square().mean()


def conjugate(model: nn.Module) -> CGQ:
    return CGQ(model.parameters())


def wrapped(model: nn.Module) -> LineSearch:
    return LineSearch(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), search_prob=1.0)


def steps(count: int, size: int) -> Tensor:
    return torch.randn(count, size, 8, 3, generator=torch.Generator().manual_seed(1))


def hosted(optimizer: Any, model: nn.Module, loss_of: Loss, window: Tensor) -> Any:
    """A step as a host takes it."""
    batches = MicroBatches[Tensor](model, lambda loss: loss / len(window), optimizer)
    optimizer.zero_grad()
    for batch in window:
        forward = lambda batch=batch: loss_of(batch)  # noqa: E731
        (batches.run(forward, forward) / len(window)).backward()
    return batches.step(optimizer.step)


def by_hand(optimizer: Any, loss_of: Loss, window: Tensor) -> Any:
    def closure(backward: bool) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for batch in window:
            loss = loss_of(batch) / len(window)
            if backward:
                loss.backward()
            total += loss.detach()
        return total

    return optimizer.step(closure)


def state(*modules: nn.Module) -> dict[str, Tensor]:
    together = nn.ModuleList(modules).state_dict()
    return {name: value.clone() for name, value in together.items()}


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("make", [conjugate, wrapped])
@pytest.mark.parametrize("size", [1, 3])
def test_modules_outside_the_model_are_as_in_a_plain_loop(make: Any, size: int) -> None:
    ended, evaluations = [], 0
    for is_hosted in (True, False):
        model, centre = network(), Centre()
        optimizer = make(model)
        torch.manual_seed(2)
        for window in steps(8, size):
            loss_of = lambda batch: centre(model(batch))  # noqa: E731
            if is_hosted:
                hosted(optimizer, model, loss_of, window)
            else:
                by_hand(optimizer, loss_of, window)
            evaluations += optimizer.last_search.evaluations
        ended.append(state(model, centre) | {"next draw": torch.rand(3)})
        assert centre.calls == 8 * size
    assert_same(*ended)
    assert evaluations > 16


def test_a_module_may_be_called_in_a_later_micro_batch_only() -> None:
    model, centre = network(), Centre()
    optimizer = conjugate(model)
    for window in steps(4, 3):
        last = window[-1]

        def loss_of(batch: Tensor) -> Tensor:
            outputs = model(batch)
            return centre(outputs) if batch.equal(last) else outputs.square().mean()

        hosted(optimizer, model, loss_of, window)
        assert optimizer.last_search.evaluations
    assert centre.calls == 4


@pytest.mark.parametrize("device", ["host", "accelerator"])
def test_a_skipped_step_leaves_them_as_they_were(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "accelerator":
        as_accelerator(monkeypatch)
    model, centre = network(), Centre()
    optimizer = conjugate(model)
    first, second = steps(2, 2)
    hosted(optimizer, model, lambda batch: centre(model(batch)), first)
    before = state(model, centre)
    hosted(optimizer, model, lambda batch: centre(model(batch)) * math.nan, second)
    assert optimizer.param_groups[0]["skipped"] == 1
    assert_same(state(model, centre), before)


class Aside(nn.Module):
    """Counts in a buffer, but nobody calls it: only `model=` tells of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))


def test_the_model_that_the_user_has_named_is_kept_too() -> None:
    model, aside = network(), Aside()
    optimizer = CGQ(model.parameters(), model=aside)

    def loss_of(batch: Tensor) -> Tensor:
        aside.count += 1
        return model(batch).square().mean()

    for window in steps(4, 1):
        hosted(optimizer, model, loss_of, window)
        assert optimizer.last_search.evaluations
    assert aside.count == model[1].num_batches_tracked == 4
    assert optimizer.model is aside


def test_a_pass_that_raises_leaves_no_hook_and_an_optimizer_for_use_by_hand() -> None:
    model, centre = network(), Centre()
    optimizer = conjugate(model)
    (first, second), (window,) = steps(1, 2)[0], steps(1, 1)
    batches = MicroBatches[Tensor](model, lambda loss: loss, optimizer)
    before, forward = state(model, centre), lambda: centre(model(first))
    batches.run(forward, forward)

    def fail() -> Tensor:
        model(second)
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        batches.run(fail, fail)
    assert not _global_forward_pre_hooks
    batches.rewind()
    torch.testing.assert_close(centre.calls, before["1.calls"])
    by_hand(optimizer, lambda batch: model(batch).square().mean(), window)
    assert optimizer.last_search.evaluations
    assert model[1].num_batches_tracked == 1


@pytest.fixture
def compilations() -> Any:
    seen: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        seen.append(1)
        return graph.forward

    torch.compiler.reset()
    yield seen, backend
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_compiled_model_is_compiled_once_with_and_once_without_gradient(
    compilations: Any,
) -> None:
    seen, backend = compilations
    model = torch.compile(network(), backend=backend)
    optimizer = conjugate(model)
    for window in steps(4, 2):  # torch would warn of a hook
        hosted(optimizer, model, lambda batch: model(batch).square().mean(), window)
        assert optimizer.last_search.evaluations
    assert len(seen) == 2


class Attributes(dict[str, Any]):
    """A dictionary of a kind that torch does not know."""


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, Attributes])
def test_every_pass_has_containers_of_its_own(kind: Any) -> None:
    x, shape = torch.ones(2), torch.Size([2])
    batch = kind(x=x, more=[kind(labels=1), deque([2])], shape=shape)
    inputs = Inputs(batch, number=7)

    def taken_out(batch: Any, number: int) -> Any:
        assert type(batch) is kind
        assert batch.pop("x") is x
        assert batch.pop("shape") is shape
        dictionary, queue = batch["more"]
        return dictionary.pop("labels"), queue.pop(), number

    for _ in range(2):
        assert inputs.given_to(taken_out) == (1, 2, 7)
    assert taken_out(batch, 7) == (1, 2, 7)
    assert inputs.given_to(taken_out) == (1, 2, 7)


def test_what_is_written_to_a_tensor_is_told_once(recwarn: pytest.WarningsRecorder) -> None:
    optimizer = conjugate(network())
    with torch.inference_mode():
        without_version = torch.ones(2)
    batch = UserDict(x=torch.ones(2), more=[torch.ones(2), without_version])
    inputs = Inputs(batch)
    batch["x"] = batch["x"].requires_grad_() + 1
    inputs.tell_if_written(optimizer)
    assert not recwarn
    batch["more"][0].mul_(2)
    inputs.tell_if_written(optimizer)
    inputs.tell_if_written(optimizer)
    assert ["Work on a copy" in str(each.message) for each in recwarn] == [True]
