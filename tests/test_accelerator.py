"""The way of an accelerator, walked on the CPU: the same steps, with fewer looks."""

from __future__ import annotations

import copy
import functools
import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from wrapped_run import is_well

import cgq.engine.run_guard
import cgq.rules.scalars
import cgq.vectors.layout
from cgq import CGQ, fletcher_reeves, join, least_squares, side_by_side
from cgq.engine.late_losses import ON_THE_WAY
from ids import option_id

OPTIONS: list[dict[str, Any]] = [
    {},
    {"fit": least_squares},
    {"fit": functools.partial(least_squares, with_slope=False)},
    {"momentum": fletcher_reeves, "smoothing": 0.5},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"weight_decay": 0.01, "nesterov": True},
    {"max_relative_step": 0.01, "lr": 10.0},
    {"max_relative_step": 0.05, "lr": math.inf, "probe": 0.01},
    {"max_relative_step": 0.01, "weight_decay": 0.01, "decoupled_weight_decay": True},
    {"maximize": True, "lr": 0.01},
]


class Run:
    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)
        ).double()
        self.inputs = torch.randn(16, 4).double()
        self.targets = torch.randn(16, 1).double()
        self.calls = 0
        first, *others = self.model.parameters()
        lr = options.pop("lr", 0.3)
        groups = [{"params": [first], "lr": lr}, {"params": others, "lr": lr / 2}]
        if math.isinf(lr):
            groups = [{"params": list(self.model.parameters()), "lr": lr}]
        self.optimizer = CGQ(groups, **options)

    def loss(self) -> Tensor:
        self.calls += 1
        return nn.functional.mse_loss(self.model(self.inputs), self.targets)

    def values(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def as_accelerator(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cgq.rules.scalars, "is_host", lambda device: False)


@pytest.mark.parametrize("search_prob", [1.0, 0.3])
@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
def test_the_same_steps(
    options: dict[str, Any], search_prob: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Run(**options, search_prob=search_prob)
    searches = []
    for _ in range(12):
        host.optimizer.step(host.loss)
        searches.append(host.optimizer.last_search)
    as_accelerator(monkeypatch)
    other = Run(**options, search_prob=search_prob)
    for search in searches:
        other.optimizer.step(other.loss)
        found = other.optimizer.last_search
        assert (found is None) == (search is None)
        if found and search:
            assert found.trial_steps == pytest.approx(search.trial_steps, rel=1e-7)
            assert found.trial_losses == pytest.approx(search.trial_losses, rel=1e-7)
            assert found.step_size == pytest.approx(search.step_size, rel=1e-7)
            assert (found.accepted, found.capped) == (search.accepted, search.capped)
    torch.testing.assert_close(other.values(), host.values(), rtol=1e-7, atol=1e-9)
    for mine, its in zip(other.optimizer.param_groups, host.optimizer.param_groups, strict=True):
        for name in (
            "step_size",
            "beta",
            "average",
            "direction_bound",
            "steps",
            "skipped",
            "trial_scale",
        ):
            assert float(mine[name]) == pytest.approx(float(its[name]), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("search_prob", [1.0, 0.3])
@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
def test_the_same_steps_in_joined_memory(
    options: dict[str, Any], search_prob: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_accelerator(monkeypatch)
    apart, joined = Run(**options, search_prob=search_prob), Run(**options, search_prob=search_prob)
    params = list(joined.model.parameters())
    join(params)
    places = side_by_side(params)
    assert places is not None

    def closure(backward: bool) -> Tensor:
        loss = joined.loss()
        if backward:
            loss.backward()
            for param, place in zip(params, places, strict=True):
                param.grad = place.copy_(param.grad)
        return loss.detach()

    gathered = []
    monkeypatch.setattr(
        cgq.vectors.layout.Layout, "gathered", lambda layout, tensors: gathered.append(tensors)
    )
    torch.manual_seed(1)
    for _ in range(12):
        joined.optimizer.step(closure)
    assert not gathered
    monkeypatch.undo()
    as_accelerator(monkeypatch)
    torch.manual_seed(1)
    for _ in range(12):
        apart.optimizer.step(apart.loss)
    torch.testing.assert_close(joined.values(), apart.values(), rtol=1e-9, atol=1e-11)


class Looks:
    """Counts how often the host reads a tensor's value."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("item", "tolist", "__float__", "__bool__", "__int__"):
            patch.setattr(Tensor, name, self._counted(getattr(Tensor, name)))

    def _counted(self, read: Any) -> Any:
        def counted(tensor: Tensor, *args: Any) -> Any:
            self.count += 1
            return read(tensor, *args)

        return counted


@pytest.mark.parametrize("options", [o for o in OPTIONS if "fit" not in o], ids=option_id)
def test_one_look_where_the_first_parabola_is_right_and_none_without_a_search(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_accelerator(monkeypatch)
    run = Run(**options, search_prob=0.5)
    run.optimizer.step(run.loss)
    is_well(run.optimizer)
    run.optimizer.param_groups[0]["start_checks"] = 1  # which is one look more, once
    guarded = "max_relative_step" in options
    unread = 0
    looks = Looks(monkeypatch)
    looked = {True: 0, False: 0}
    for _ in range(30):
        looks.count = 0
        run.optimizer.step(run.loss)
        search = run.optimizer.last_search
        # Of a watched run, the loss of two steps ago is read, which has arrived by then.
        late = unread == len(ON_THE_WAY) and not guarded
        if search is None:
            assert looks.count == late
            unread = min(unread + 1, 1 if guarded else len(ON_THE_WAY))
        else:
            spared = 2 if run.optimizer.options.shrinks_trial else 1
            # What the losses were in between is read after the search, when none has to wait.
            assert looks.count == 1 + max(0, len(search.trial_steps) - spared) + unread
            unread = 0
        looked[search is not None] += 1
    assert min(looked.values()) >= 5


def test_unread_losses_are_few_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"max_relative_step": 0.01, "lr": 10.0, "search_prob": 1e-9}
    monkeypatch.setattr(cgq.engine.run_guard, "UNREAD", 8)
    copied = []
    for path in ("host", "accelerator"):
        if path == "accelerator":
            as_accelerator(monkeypatch)
        run = Run(**options)
        run.optimizer.step(run.loss)
        is_well(run.optimizer)
        looks = Looks(monkeypatch) if path == "accelerator" else None
        for step in range(1, 21):
            run.optimizer.step(run.loss)
            assert run.optimizer.last_search is None
            if looks:
                assert looks.count == step // 8
        copied.append(copy.deepcopy(run.optimizer).param_groups[0])
    assert copied[0]["losses"] == copied[1]["losses"] == 21
    assert copied[1]["usual_loss"] == pytest.approx(copied[0]["usual_loss"], rel=1e-7)


def test_unread_losses_are_on_their_way_before_the_host_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are read when a search is over: what it waited for comes after them."""
    as_accelerator(monkeypatch)
    run = Run(max_relative_step=0.01, lr=10.0, search_prob=0.5)
    optimizer, due, sent = run.optimizer, True, list[list[float] | None]()
    monkeypatch.setattr(optimizer, "_is_due", lambda: due)
    is_well(optimizer)

    def closure(backward: bool) -> Tensor:
        if not backward:
            arriving = optimizer._guard._arriving
            sent.append(None if arriving is None else arriving.read())
        loss = run.loss()
        if backward:
            loss.backward()
        return loss

    optimizer.step(closure)
    assert set(sent) == {None}, "there was none"
    sent.clear()
    due, losses = False, []
    for _ in range(3):
        losses.append(float(optimizer.step(closure)))
    assert not sent
    due = True
    optimizer.step(closure)
    assert sent[0] == losses
    assert optimizer._guard._arriving is None
    assert optimizer.param_groups[0]["losses"] == 5


def line_of(optimizer: CGQ, phi: Any, at: Tensor) -> tuple[Any, int]:
    """Take one step down the function phi of one number; the search and the calls it made."""
    calls = 0

    def closure(backward: bool) -> Tensor:
        nonlocal calls
        calls += 1
        loss: Tensor = phi(at)
        if backward:
            loss.backward()
        return loss.detach()

    optimizer.step(closure)
    return optimizer.last_search, calls


@pytest.mark.parametrize("max_fits", [1, 2, 3])
@pytest.mark.parametrize(
    ("phi", "unused"),
    [
        (lambda x: (x - 2) ** 2 + 1, 0),
        (lambda x: torch.cos(x) + 2, 1),  # bends down: there is no minimum ahead
        (lambda x: torch.where(x < 1.01, (x - 0.9) ** 2 + 1, math.nan), 0),
        (lambda x: torch.where(x == 1.0, (x - 0.9) ** 2 + 1, math.inf), 0),
        (lambda x: torch.cos(9 * x) + 1.5 - x, 0),
    ],
)
def test_evaluations_are_counted_and_bounded(
    phi: Any, unused: int, max_fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = torch.tensor(1.0 if unused == 0 else 0.3, dtype=torch.float64, requires_grad=True)
    twin = at.detach().clone().requires_grad_()
    on_host, _ = line_of(CGQ([twin], max_fits=max_fits), phi, twin)
    as_accelerator(monkeypatch)
    search, calls = line_of(CGQ([at], max_fits=max_fits), phi, at)
    assert calls == 1 + search.evaluations <= 2 + max_fits
    assert search.unused == unused
    assert search.trial_steps == on_host.trial_steps
    assert search.step_size == on_host.step_size
    assert torch.equal(at, twin)


def test_a_probe_that_raises_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    run = Run()
    for _ in range(3):
        run.optimizer.step(run.loss)
    for failing in (2, 3):
        before, state = run.values(), torch.get_rng_state()
        memory = [entry["direction"].clone() for entry in run.optimizer.state.values()]
        run.calls = 0

        def loss() -> Tensor:
            if run.calls + 1 == failing:
                raise KeyboardInterrupt
            return run.loss()

        with pytest.raises(KeyboardInterrupt):
            run.optimizer.step(loss)
        torch.testing.assert_close(run.values(), before, rtol=0, atol=0)
        assert torch.equal(torch.get_rng_state(), state)
        for entry, old in zip(run.optimizer.state.values(), memory, strict=True):
            assert torch.equal(entry["direction"], old)


def test_a_trial_that_raises_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured ahead or not: as on the host. Where all trials raise, nothing has happened."""

    def trained(run: Run) -> list[Any]:
        found: list[float] = []
        for failing in (), (2,), (2, 3), ():
            run.calls = 0

            def loss() -> Tensor:
                value = run.loss()
                if run.calls in failing:
                    raise ValueError("no")
                return value

            run.optimizer.step(loss)
            search = run.optimizer.last_search
            assert search is not None
            found += len(search.trial_steps), *search.trial_steps, *search.trial_losses
        return found

    with pytest.warns(UserWarning, match="A trial .* raised"):
        on_host = trained(Run())
    as_accelerator(monkeypatch)
    run = Run()
    with pytest.warns(UserWarning, match="A trial .* raised"):
        # The two ways add in another order; the loss of a trial that raised is NaN in both.
        assert trained(run) == pytest.approx(on_host, rel=1e-7, nan_ok=True)
    before, state, run.calls = run.values(), torch.get_rng_state(), 0

    def raising() -> Tensor:
        value = run.loss()
        if run.calls > 1:
            raise ValueError("no")
        return value

    with pytest.raises(ValueError, match="no"):
        run.optimizer.step(raising)
    torch.testing.assert_close(run.values(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("search_prob", [1.0, 0.0])
def test_a_batch_that_is_not_finite_is_left_out(
    search_prob: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_accelerator(monkeypatch)
    run = Run(search_prob=search_prob)
    for _ in range(3):
        run.optimizer.step(run.loss)
    before = run.values()
    memory = [entry["residual"].clone() for entry in run.optimizer.state.values()]
    run.optimizer.step(lambda: run.loss() * math.nan)
    torch.testing.assert_close(run.values(), before, rtol=0, atol=0)
    for entry, old in zip(run.optimizer.state.values(), memory, strict=True):
        assert torch.equal(entry["residual"], old)
    assert int(run.optimizer.param_groups[0]["skipped"]) == 1


def test_nothing_to_search_where_it_is_stationary(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    at = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = CGQ([at])
    optimizer.step(lambda: at.square().sum() + 1)
    assert optimizer.last_search is None
    assert torch.equal(at, torch.zeros(3, dtype=torch.float64))
    assert optimizer.param_groups[0]["skipped"] == 0


def assert_no_copy_outlives_a_step(take: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Take some steps, without Python's garbage collector, and look for gathered vectors."""
    made: list[weakref.ref[Tensor]] = []
    gathered = cgq.vectors.layout.Layout.gathered

    def noted(layout: Any, tensors: Any) -> Any:
        buffer = gathered(layout, tensors)
        made.extend(map(weakref.ref, buffer.blocks))
        return buffer

    patch.setattr(cgq.vectors.layout.Layout, "gathered", noted)
    gc.collect()
    gc.disable()
    try:
        for _ in range(6):
            take()
            assert [block for block in made if block() is not None] == []
    finally:
        gc.enable()
    assert made


@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
def test_no_copy_of_the_network_outlives_its_step(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_accelerator(monkeypatch)
    run = Run(**options, search_prob=0.5)
    assert_no_copy_outlives_a_step(lambda: run.optimizer.step(run.loss), monkeypatch)
    assert run.optimizer.param_groups[0]["steps"] == 6
