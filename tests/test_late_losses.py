"""sCGQ on an accelerator hears of the losses of unsearched steps two steps later."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_accelerator import Looks, as_accelerator
from test_strangers import layer_norm_task, recommended
from torch import Tensor, nn

from cgq import CGQ
from cgq.engine.late_losses import ON_THE_WAY
from cgq.rules.watch import AFTER, Watch

NEVER = 1e-9  # after the first step, which is always searched
LATE = len(ON_THE_WAY)


class Slide:
    """A long way down; `height` lifts the loss and gives no gradient."""

    def __init__(self, **options: Any) -> None:
        self.weight = nn.Parameter(torch.linspace(1.0, 2.0, 8, dtype=torch.float64))
        group = {"params": [self.weight], **options}
        self.optimizer = CGQ([group], lr=0.001, search_prob=options.pop("search_prob", NEVER))
        self.height, self.factor = 0.0, 1.0
        self.losses: list[float] = []

    def loss(self) -> Tensor:
        return self.factor * (self.weight.square().sum() + self.height)

    def searched(self, steps: int = 1) -> list[bool]:
        """Which of so many steps were searched."""
        found = []
        for _ in range(steps):
            self.losses.append(float(self.optimizer.step(self.loss)))
            found.append(self.optimizer.last_search is not None)
        return found

    @property
    def group(self) -> dict[str, Any]:
        return self.optimizer.param_groups[0]


def test_what_is_heard_is_exactly_the_loss_of_two_steps_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_accelerator(monkeypatch)
    run = Slide()
    assert run.searched(1) == [True]
    for step in range(1, 20):
        assert run.searched() == [False]
        known = Watch()
        for number, loss in enumerate(run.losses[: max(1, step - LATE + 1)]):
            known = known.after(loss, searched=not number)
        assert Watch.of(run.group) == known
        on_the_way = run.optimizer.state_dict()["param_groups"][0]
        expected = ([math.inf, *run.losses[1:]])[-LATE:]
        assert [on_the_way[name] for name in ON_THE_WAY] == expected


def test_an_alarm_searches_the_next_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host searches the batch itself; a device stays, and the one two steps later is."""
    found = []
    for late in (0, LATE):
        if late:
            as_accelerator(monkeypatch)
        run = Slide()
        run.searched(20)
        run.height, before = 100.0, run.weight.detach().clone()
        after = run.searched()
        assert torch.equal(run.weight, before) == bool(late)
        assert (run.group["step_size"] == 0.0) == bool(late)
        assert int(run.group["skipped"]) == 0
        run.height = 0.0
        after += run.searched(12)
        found.append([step for step, searched in enumerate(after) if searched])
    on_host, on_device = found
    assert on_host == list(range(1 + AFTER))
    assert on_device == list(range(LATE, LATE + AFTER))


def test_a_closure_may_return_a_float(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one over micro-batches does."""
    as_accelerator(monkeypatch)
    runs = Slide(), Slide()

    def closure(backward: bool) -> float:
        loss = runs[1].loss()
        if backward:
            runs[1].weight.grad = None
            loss.backward()
        return loss.item()

    for step in range(30):
        for run in runs:
            run.height = 100.0 if step == 10 else 0.0
        runs[0].optimizer.step(runs[0].loss)
        runs[1].optimizer.step(closure)
        searches = [run.optimizer.last_search for run in runs]
        assert searches[0] == searches[1]
    assert torch.equal(runs[0].weight, runs[1].weight)
    assert Watch.of(runs[0].group) == Watch.of(runs[1].group)


def test_a_search_hears_first_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    run = Slide(search_prob=0.3)
    found = run.searched(40)
    assert any(found[LATE + 1 :])
    known = Watch()
    for loss, searched in zip(run.losses, found, strict=True):
        known = known.after(loss, searched=searched)
    run.optimizer.param_groups[0]["to_search"] = 1  # the next is searched
    run.searched()
    known = known._replace(to_search=1).after(run.losses[-1], searched=True)
    assert Watch.of(run.group) == known
    assert [run.group[name] for name in ON_THE_WAY] == [math.inf] * LATE


def test_one_look_a_step_and_none_of_an_unwatched_run(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    for watched in (True, False):
        run = Slide(watched=watched)
        run.optimizer.step(run.loss)
        with monkeypatch.context() as patch:
            looks, counts = Looks(patch), []
            for _ in range(6):
                looks.count = 0
                run.optimizer.step(run.loss)
                counts.append(looks.count)
        assert counts == [0] * LATE + [1] * (6 - LATE) if watched else [0] * 6


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_skipped_steps_tell_nothing(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    run = Slide()
    run.searched(10)
    run.factor = bad
    run.searched(LATE)
    before = Watch.of(run.group)
    run.searched(5)
    assert Watch.of(run.group) == before
    assert not before.to_search
    run.factor = 1.0
    assert run.searched(10) == [False] * 10


def test_a_step_that_raises_has_heard_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    run = Slide()
    run.searched(10)
    run.height = 100.0
    run.searched(LATE)
    before = copy.deepcopy(run.optimizer.state_dict())

    def raising() -> Tensor:
        loss = run.loss()
        if not torch.is_grad_enabled():
            raise KeyboardInterrupt
        return loss

    with pytest.raises(KeyboardInterrupt):  # in a search, which the alarm has called for
        run.optimizer.step(raising)
    assert str(run.optimizer.state_dict()) == str(before)
    assert run.searched() == [True]


def saved(optimizer: CGQ) -> Any:
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def loaded(run: Slide, other: Slide) -> None:
    other.optimizer.load_state_dict(saved(run.optimizer))


def copied(run: Slide, other: Slide) -> None:
    other.optimizer, other.weight = copy.deepcopy((run.optimizer, run.weight))


def pickled(run: Slide, other: Slide) -> None:
    other.optimizer, other.weight = pickle.loads(pickle.dumps((run.optimizer, run.weight)))


@pytest.mark.parametrize("handed_over", [loaded, copied, pickled])
@pytest.mark.parametrize("stop", range(9, 14))
def test_resuming_equals_continuing(
    stop: int, handed_over: Callable[[Slide, Slide], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, while and after the loss that alarms is on its way."""
    as_accelerator(monkeypatch)
    run, other = Slide(), Slide()

    def trained(run: Slide, steps: range) -> list[bool]:
        found = []
        for step in steps:
            run.height = 100.0 if step == 10 else 0.0
            found += run.searched()
        return found

    trained(run, range(stop))
    other.weight.data.copy_(run.weight.data)
    handed_over(run, other)
    rest = range(stop, 25)
    expected = trained(run, rest)
    assert trained(other, rest) == expected
    assert sum(expected) == sum(step >= stop for step in range(10 + LATE, 10 + LATE + AFTER))
    assert torch.equal(other.weight, run.weight)
    assert str(saved(other.optimizer)) == str(saved(run.optimizer))


def test_a_host_goes_on_with_what_a_device_had_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = Slide(), Slide()
    with monkeypatch.context() as patch:
        as_accelerator(patch)
        run.searched(10)
        run.height = 100.0
        run.searched(LATE)
        loaded(run, other)
    assert other.searched() == [True]
    assert other.group["watched_losses"] == 10 + LATE + 1


def test_losses_that_rise_for_good_do_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the data change: the run is searched until the level has followed."""
    as_accelerator(monkeypatch)
    run = Slide(search_prob=0.1)
    run.searched(50)
    run.height = 100.0
    found = run.searched(200)
    assert found[:LATE] == [False] * LATE
    assert all(found[LATE : LATE + 10])
    assert sum(found[100:]) < 30
    before = run.weight.detach().clone()
    run.searched(5)
    assert (run.weight < before).all()


@pytest.mark.parametrize("seed", range(3))
def test_runs_that_the_average_step_would_ruin_are_well(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_accelerator(monkeypatch)
    model, closure = layer_norm_task(seed)
    optimizer = recommended(model)
    losses = [float(optimizer.step(closure)) for _ in range(300)]
    assert sum(losses[-20:]) / 20 < 0.05 * losses[0]
