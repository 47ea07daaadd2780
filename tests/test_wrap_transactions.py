"""A step of LineSearch that fails leaves everything as it was, the base's state too."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from test_transactions import assert_same, from_call, raising
from torch import Tensor
from wrapped_run import Run, adamw, is_well

from cgq import LineSearch
from ids import option_id


def rmsprop(params: Any) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(params, lr=0.01, momentum=0.9, centered=True)


class Failing(torch.optim.Adam):
    """Advances half of its moments, and then fails if told to."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        super().step()
        if self.fails:
            self.fails = False
            raise ValueError("no")


BASES = [adamw, rmsprop]


@pytest.mark.parametrize("make", BASES)
@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ValueError("no"), 0),
        (ValueError("no"), 1),
        (KeyboardInterrupt(), 0),
        (KeyboardInterrupt(), 1),
        (KeyboardInterrupt(), 2),
    ],
)
def test_closure_that_raises(make: Any, warm_up: int, error: BaseException, call: int) -> None:
    options = {"max_relative_step": 0.5}  # so long that the first trial is not the last
    run = Run(make, **options)
    for _ in range(warm_up):
        run.step()
    before = run.snapshot()
    try:
        with pytest.raises(type(error)):
            run.step(from_call(call, raising(error)))
    except pytest.fail.Exception:
        assert run.calls <= call, "the search ended before the call that would raise"
        return
    assert_same(run.snapshot(), before)
    for _ in range(3):
        run.step()
    after = run.snapshot()
    clean = Run(make, **options)
    for step in range(warm_up + 3):
        if step == warm_up:
            clean.snapshot()  # which forgets the last step, as the failed one did
        clean.step()
    assert_same(clean.snapshot(), after)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize("options", [{"search_prob": 1.0}, {"search_prob": 0.0}], ids=option_id)
def test_loss_that_is_not_finite(options: dict[str, Any], value: float, warm_up: int) -> None:
    run = Run(**options)
    for _ in range(warm_up):
        run.step()
    before = run.snapshot(with_skipped=False)
    run.step({0: lambda loss: loss * value})
    assert run.calls == 1
    assert_same(run.snapshot(with_skipped=False), before)
    assert run.group["skipped"] == 1
    run.step()
    assert run.group["skipped"] == 1
    assert run.group["steps"] == warm_up + 1


@pytest.mark.parametrize("options", [{"search_prob": 1.0}, {"search_prob": 0.0}], ids=option_id)
def test_gradient_that_is_not_finite(options: dict[str, Any]) -> None:
    run = Run(**options)
    run.step()
    before = run.snapshot(with_skipped=False)
    run.step({0: lambda loss: loss + torch.sqrt(0.0 * loss)})
    assert_same(run.snapshot(with_skipped=False), before)
    run.optimizer.zero_grad()
    for param in run.model.parameters():
        param.grad = torch.full_like(param, math.inf)
    run.optimizer.step()
    assert_same(run.snapshot(with_skipped=False), before)
    assert run.group["skipped"] == 2


def test_search_without_a_finite_trial_is_skipped() -> None:
    run = Run()
    run.step()
    before = run.snapshot(with_skipped=False)
    run.step({call: lambda loss: loss * math.nan for call in range(1, 10)})
    assert run.calls == 1 + 1 + 3
    assert_same(run.snapshot(with_skipped=False), before)
    assert run.group["skipped"] == 1


@pytest.mark.parametrize("warm_up", [0, 3])
def test_base_that_raises(warm_up: int) -> None:
    run = Run(Failing)
    for _ in range(warm_up):
        run.step()
    before = run.snapshot()
    run.base.fails = True
    with pytest.raises(ValueError, match="no"):
        run.step()
    assert_same(run.snapshot(), before)


def test_base_that_raises_where_nothing_is_searched_leaves_the_parameters() -> None:
    """Its own state is then as it left it: to copy it in every step would cost too much."""
    run = Run(Failing, search_prob=0.0)
    for _ in range(2):
        run.step()
    before = run.snapshot()
    run.base.fails = True
    with pytest.raises(ValueError, match="no"):
        run.step()
    assert_same(run.snapshot()[0], before[0])
    assert_same(run.snapshot()[2], before[2])
    assert [float(state["step"]) for state in run.base.state.values()] == [3.0] * 6


def test_update_that_is_not_finite_is_not_taken() -> None:
    class Bursting(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for param in self.param_groups[0]["params"]:
                param.fill_(math.inf)

    for search_prob in (0.0, 1.0):
        run = Run(lambda params: Bursting(params, lr=0.1), search_prob=search_prob)
        before = run.snapshot(with_skipped=False)
        run.step()
        assert_same(run.snapshot(with_skipped=False), before)
        assert run.group["skipped"] == 1


@pytest.mark.parametrize("make", BASES)
def test_generators_and_buffers_end_as_after_one_pass(make: Any) -> None:
    run, plain = Run(make), Run(make)
    for _ in range(5):
        plain.model.load_state_dict(run.model.state_dict())
        start = run.snapshot()[2]
        run.step()
        assert run.optimizer.last_search is not None
        after, buffers = run.snapshot()[2], dict(run.model.named_buffers())
        torch.set_rng_state(start[2])
        plain.closure()  # Python's and NumPy's draws do not reach the buffers
        for name, buffer in plain.model.named_buffers():
            assert torch.equal(buffer, buffers[name])
        assert torch.equal(torch.get_rng_state(), after[2])


def test_a_probe_that_raises_after_quiet_steps() -> None:
    run = Run(search_prob=0.5)
    run.step()
    is_well(run.optimizer)
    for _ in range(20):
        before, calls = run.snapshot(), []

        def act(loss: Tensor, calls: list[int] = calls) -> Tensor:
            calls.append(1)
            raise ValueError("no")

        try:
            run.step(from_call(1, act))
        except ValueError:
            assert_same(run.snapshot(), before)
            break
        assert not calls
    else:
        pytest.fail("no batch was searched")


class Pair(torch.optim.Optimizer):
    """Two inner optimizers in a list, and attributes of Python: a count, a list, an average."""

    def __init__(self, params: Any) -> None:
        first, *others = list(params)
        super().__init__([first, *others], {"lr": 0.01})
        self.inner = [
            torch.optim.SGD([first], lr=0.01, momentum=0.9),
            torch.optim.Adam(others, lr=0.01),
        ]
        self.turns = 0
        self.lengths: list[float] = []
        self.mean: Tensor | None = None
        self.kept: dict[str, Any] = {"by name": {}}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in self.inner:
            each.step()
        first = self.param_groups[0]["params"][0]
        self.turns += 1
        self.lengths.append(first.grad.norm().item())
        self.kept["by name"][self.turns] = self.turns
        if self.mean is None:
            self.mean = first.grad.clone()
        else:
            self.mean.mul_(0.9).add_(first.grad)
        first.add_(self.mean, alpha=-0.01 / self.turns)


def dog(params: Any) -> Any:
    return pytest.importorskip("dog").DoG(params, reps_rel=1e-4)


def everything(run: Run) -> Any:
    """Also what a base keeps apart from `state` and groups, by value."""
    kept = {k: v for k, v in vars(run.base).items() if not (callable(v) or "hook" in k)}
    moments = [
        list(inner.state_dict()["state"].values()) for inner in getattr(run.base, "inner", [])
    ]
    kept.pop("inner", None)
    del kept["state"], kept["param_groups"]
    return run.snapshot(with_skipped=False), copy.deepcopy((kept, moments))


@pytest.mark.parametrize("make", [Pair, dog])
@pytest.mark.parametrize("warm_up", [0, 1, 3])
@pytest.mark.parametrize("failure", ["raises", "is never finite"])
def test_what_a_base_keeps_elsewhere_is_restored(make: Any, warm_up: int, failure: str) -> None:
    options = {"search_prob": 1.0, "max_relative_step": 0.5}
    run = Run(make, **options)
    for _ in range(warm_up):
        run.step()
    before = everything(run)
    if failure == "raises":
        with pytest.raises(ValueError, match="no"):
            run.step(from_call(1, raising(ValueError("no"))))
    else:
        run.step({call: lambda loss: loss * math.nan for call in range(1, 10)})
        assert run.group["skipped"] == 1
    assert_same(everything(run), before)
    for _ in range(3):
        run.step()
    after = everything(run)
    clean = Run(make, **options)
    for _ in range(warm_up + 3):
        clean.step()
    assert_same(everything(clean), after)
    if make is Pair:
        assert run.base.turns == warm_up + 3 == len(run.base.lengths)


@pytest.mark.parametrize("make", [Pair, dog])
def test_the_base_s_containers_stay_the_same_objects(make: Any) -> None:
    """Whoever refers to them, as a scheduler does to groups, goes on with what is in use."""
    run = Run(make, search_prob=1.0)
    run.step()
    places = [run.base.param_groups, run.base.param_groups[0], run.base.state]
    places += [place for place in vars(run.base).values() if isinstance(place, (list, dict))]
    names = list(vars(run.base))
    run.step({call: lambda loss: loss * math.nan for call in range(1, 10)})
    again = [run.base.param_groups, run.base.param_groups[0], run.base.state]
    again += [place for place in vars(run.base).values() if isinstance(place, (list, dict))]
    assert [id(place) for place in again] == [id(place) for place in places]
    assert list(vars(run.base)) == names


def test_a_rolled_back_step_is_a_step_to_a_scheduler() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    base = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(base, 5)
    optimizer = LineSearch(base)
    calls = []

    def closure() -> torch.Tensor:
        calls.append(1)
        return weight.square().sum() * (math.nan if len(calls) > 1 else 1.0)

    optimizer.step(closure)
    assert optimizer.param_groups[0]["skipped"] == 1
    scheduler.step()  # torch would warn if it had seen no step before
    assert not base.state
