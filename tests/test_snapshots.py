"""Snapshots: what was noted comes back, by the same containers and tensors."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from typing import Any

import pytest
import torch
from test_accelerator import as_accelerator
from torch import Tensor, nn

from cgq.evaluation import copies
from cgq.evaluation.copies import Copier
from cgq.evaluation.snapshots import Snapshot


def trained(kind: Any = torch.optim.AdamW, **options: Any) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(size, 3)) for size in range(1, 6)]
    base: torch.optim.Optimizer = kind(weights, lr=0.1, **options)
    train(base)
    return base


def train(base: torch.optim.Optimizer) -> None:
    for param in params_of(base):
        param.grad = torch.randn_like(param)
    base.step()


def params_of(base: torch.optim.Optimizer) -> list[Tensor]:
    return [param for group in base.param_groups for param in group["params"]]


def facts(base: torch.optim.Optimizer) -> Any:
    """Values, and who holds them."""
    state = {
        id(param): (id(entry), {name: (id(value), copied(value)) for name, value in entry.items()})
        for param, entry in base.state.items()
    }
    return state, [(id(group), dict(group)) for group in base.param_groups]


def copied(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {}),
        (torch.optim.Rprop, {}),
        (torch.optim.NAdam, {}),
    ],
)
def test_a_base_comes_back(
    kind: Any, options: Any, on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if on_device:
        as_accelerator(monkeypatch)
    base, copier = trained(kind, **options), Copier()
    for number in range(6):
        before = facts(base)
        snapshot = Snapshot([base], without=params_of(base), copier=copier)
        train(base)
        base.param_groups[0]["lr"] *= 2.0
        first = base.state[params_of(base)[0]]
        if number % 2:  # others, and fewer
            first.update({name: torch.ones(7) for name in first}, more=[torch.ones(1)])
            base.state.pop(params_of(base)[1], None)
        snapshot.restore()
        assert facts(base) == before
        train(base)


def test_what_is_known_of_tensors_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    kinds_of = copies.kinds_of
    monkeypatch.setattr(copies, "kinds_of", lambda t: asked.append(len(t)) or kinds_of(t))
    base, copier = trained(), Copier()
    for _ in range(3):
        Snapshot([base], without=params_of(base), copier=copier)
        train(base)
    assert len(asked) == 1
    first = base.state[params_of(base)[0]]
    for name, times in (("exp_avg", 1), ("step", 2)):  # one of its kind anew, one of another
        first[name] = first[name].double() / 3
        before = facts(base)
        snapshot = Snapshot([base], without=params_of(base), copier=copier)
        first[name].zero_()
        snapshot.restore()
        assert len(asked) == times
        assert facts(base) == before


def test_a_number_made_anew_in_each_step_is_no_reason_to_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    kinds_of = copies.kinds_of
    monkeypatch.setattr(copies, "kinds_of", lambda t: asked.append(len(t)) or kinds_of(t))
    base, copier = trained(), Copier()
    for number in range(4):
        base.param_groups[0]["number"] = torch.tensor(float(number))
        before = facts(base)
        snapshot = Snapshot([base], without=params_of(base), copier=copier)
        base.param_groups[0]["number"].fill_(-1.0)
        snapshot.restore()
        assert facts(base) == before
    assert len(asked) == 1


def test_no_tensor_is_kept_alive() -> None:
    base, copier = trained(), Copier()
    Snapshot([base], copier=copier)
    moment = weakref.ref(base.state[params_of(base)[0]]["exp_avg"])
    base.state.clear()
    gc.collect()
    assert moment() is None
    Snapshot([base], copier=copier).restore()


def test_every_shape_of_state_comes_back() -> None:
    shared, seen = torch.zeros(2), torch.arange(3)
    state: dict[str, Any] = {
        "nested": {"list": [torch.ones(1), (seen, [torch.ones(2)])], "twice": [shared, shared]},
        "expanded": torch.ones(1).expand(4),
        "sparse": torch.eye(2).to_sparse(),
        "number": 3,
        "none": None,
        "text": "text",
        "object": object(),
    }
    state["itself"] = state
    inner = state["nested"]["list"][1][1]
    snapshot = Snapshot([state])
    inner[0].zero_(), inner.append(1), shared.fill_(5.0), seen.zero_()
    state["sparse"].mul_(2.0)
    state["number"], state["more"] = 4, 5
    del state["object"]
    snapshot.restore()
    assert inner[0].tolist() == [1.0, 1.0]
    assert len(inner) == 1
    assert shared.tolist() == [0.0, 0.0]
    assert seen.tolist() == [0, 1, 2]
    assert state["sparse"].to_dense().tolist() == torch.eye(2).tolist()
    assert "more" not in state
    assert state["number"] == 3
    assert type(state["object"]) is object


def test_a_copier_takes_memory_on_the_host_once() -> None:
    """New memory takes longer than to copy: a search of LineSearch would pay it each time."""
    copier, tensors = Copier(), [torch.randn(300), torch.randn(4, 5).t(), torch.ones(())]
    first = copier.copies(tensors)
    places = [copy.data_ptr() for copy in first[:2] if copy is not None]
    for tensor in tensors:
        tensor.add_(1.0)
    again = copier.copies(tensors)
    assert [copy.data_ptr() for copy in again[:2] if copy is not None] == places
    for copy, tensor in zip(again, tensors, strict=True):
        assert copy is not None
        assert torch.equal(copy, tensor)
        assert copy.data_ptr() != tensor.data_ptr()


def test_other_tensors_are_copied_to_other_memory() -> None:
    copier, tensors = Copier(), [torch.randn(30), torch.randn(4)]
    kept = copier.copies(tensors)
    was = [copy.clone() for copy in kept if copy is not None]
    copier.copies([torch.randn(30), torch.randn(4)])
    assert all(map(torch.equal, [copy for copy in kept if copy is not None], was))


def test_a_tensor_that_has_changed_its_shape_gets_other_memory() -> None:
    copier, tensor = Copier(), torch.randn(30)
    copier.copies([tensor])
    tensor.resize_(2, 5)
    (copy,) = copier.copies([tensor])
    assert copy is not None
    assert torch.equal(copy, tensor)


def test_what_a_state_keeps_in_objects_and_other_containers_comes_back() -> None:
    class Graft:
        def __init__(self) -> None:
            self.momentum, self.steps, self.inner = torch.ones(3), 0, [torch.zeros(2)]

    class Own(torch.optim.SGD):
        def __init__(self, params: Any) -> None:
            super().__init__(params, lr=0.1)
            self.history, self.names, self.owner = deque([1, 2], maxlen=3), {"a"}, Graft()

    base = Own([nn.Parameter(torch.ones(3))])
    graft = base.state[params_of(base)[0]]["graft"] = Graft()
    momentum = graft.momentum
    snapshot = Snapshot([base], without=params_of(base))
    graft.momentum.mul_(2.0)
    graft.inner[0].add_(1.0)
    graft.momentum, graft.steps, base.owner.steps = torch.zeros(3), 1, 1
    base.history.extend([3, 4])
    base.names.add("b")
    snapshot.restore()
    assert graft.momentum is momentum
    assert torch.equal(momentum, torch.ones(3))
    assert torch.equal(graft.inner[0], torch.zeros(2))
    assert graft.steps == 0
    assert base.history == deque([1, 2])
    assert base.names == {"a"}
    assert base.owner.steps == 1  # which is no state of the optimizer's
