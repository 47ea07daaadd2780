"""A search that a user has written, along CGQ's direction and along the update of another."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import wrapped_run
from test_accelerator import as_accelerator
from test_transactions import Run as PlainRun
from test_transactions import assert_same
from torch import Tensor, nn

from cgq import CGQ, ConjugateDescent, LineSearch, QuadraticSearch, Search, Start, least_squares
from ids import option_id

Phi = Callable[[float], float]


def outcome(start: Start, steps: list[float], losses: list[float], **more: Any) -> Search:
    """What a search says that takes its last trial, unless told otherwise."""
    choice = {"step_size": steps[-1] if steps else 0.0, "accepted": True, "capped": False} | more
    return Search(start.loss, start.slope, math.nan, tuple(steps), tuple(losses), **choice)


def first_trial_is_best(phi: Phi, start: Start) -> Search:
    return outcome(start, [start.trial], [phi(start.trial)])


class Remembering:
    """Two trials, and the numbers of searches and of trials so far as memory."""

    needs_length = True
    any_slope = True

    def __init__(self) -> None:
        self.memory = {"asked": 0.0, "tried": 0.5}

    def __call__(self, phi: Phi, start: Start) -> Search:
        steps = [start.trial, start.trial / (2.0 + start.memory["asked"])]
        losses = [phi(step) for step in steps]
        memory = {"asked": start.memory["asked"] + 1.0, "tried": start.memory["tried"] + 2.0}
        return outcome(start, steps, losses, memory=memory)


class Told:
    """Asks somebody else, and keeps what it was told and what it said."""

    needs_length = True
    any_slope = True

    def __init__(self, inner: Any = first_trial_is_best) -> None:
        self.inner, self.starts, self.said = inner, [], []
        self.memory = getattr(inner, "memory", {})

    def __call__(self, phi: Phi, start: Start) -> Search:
        self.starts.append(start)
        self.said.append(self.inner(phi, start))
        return self.said[-1]


WAYS = pytest.mark.parametrize("way", ["host", "accelerator"])
KINDS = pytest.mark.parametrize("kind", [PlainRun, wrapped_run.Run], ids=["CGQ", "LineSearch"])
# Every batch; the step found, not an average of it with those before.
EACH: dict[str, Any] = {"search_prob": 1.0, "smoothing": 0.0}


@pytest.fixture
def on(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "accelerator":
        as_accelerator(monkeypatch)


def adamw(groups: Any) -> Any:
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)


def sgd(groups: Any) -> Any:
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def climbing(groups: Any) -> Any:
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, maximize=True)


# What it is told


class Line:
    """A network in two groups, and where it stood in the pass and in the probes of a step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        self.inputs, self.targets = torch.randn(16, 4).double(), torch.randn(16, 1).double()
        self.params = list(self.model.parameters())
        self.points: list[Tensor] = []
        self.groups = [
            {"params": self.params[:1], "lr": 0.2},
            {"params": self.params[1:], "lr": 0.1},
        ]

    def vector(self) -> Tensor:
        return torch.cat([param.detach().flatten() for param in self.params])

    def loss(self) -> Tensor:
        return nn.functional.mse_loss(self.model(self.inputs), self.targets)

    def gradient(self) -> Tensor:
        grads = torch.autograd.grad(self.loss(), self.params)
        return torch.cat([grad.flatten() for grad in grads])

    def closure(self) -> Tensor:
        self.points.append(self.vector())
        return self.loss()


MAKES: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9, "nesterov": True},
    {"weight_decay": 0.01},
    {"max_relative_step": 0.01},
    {"maximize": True},
    {"weight_decay": 0.1, "decoupled_weight_decay": True},
    {"base": adamw},
    {"base": sgd},
    {"base": climbing},
]


@WAYS
@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("options", MAKES, ids=option_id)
def test_slope_and_length_are_those_of_the_line(options: dict[str, Any]) -> None:
    line, search, more = Line(), Told(), dict(options)
    base = more.pop("base", None)
    if base:
        optimizer: Any = LineSearch(base(line.groups), search=search, **EACH)
    else:
        optimizer = ConjugateDescent(line.groups, search=search, **more)
    sign = -1.0 if "maximize" in options or base is climbing else 1.0
    for _ in range(6):
        g, at_zero = line.gradient(), line.loss().item()
        line.points.clear()
        optimizer.step(line.closure)
        theta, probed = line.points
        start = search.starts[-1]
        d = (probed - theta) / start.trial
        assert start.loss == pytest.approx(sign * at_zero, rel=1e-14)
        assert start.slope == pytest.approx(sign * (g @ d).item(), rel=1e-9)
        if "decoupled_weight_decay" not in options:  # which is no part of p
            assert start.squared_length == pytest.approx((d @ d).item(), rel=1e-9)
        assert 0.0 < start.trial <= start.ceiling
        assert start.dtype == torch.float64
        assert torch.equal(line.vector(), probed), "it ends where the search chose"
        assert optimizer.param_groups[0]["step_size"] > 0.0
    assert len(search.starts) == 6


@KINDS
def test_only_who_asks_is_told_the_length(kind: Any) -> None:
    seen = []

    def search(phi: Phi, start: Start) -> Search:
        seen.append(start.squared_length)
        assert start.memory == {}
        return first_trial_is_best(phi, start)

    run = kind(search=search, **EACH)
    run.step()
    assert seen == [pytest.approx(math.nan, nan_ok=True)]


def test_the_dtype_is_the_loss_s() -> None:
    weight, search = nn.Parameter(torch.ones(3)), Told()
    optimizer = ConjugateDescent([weight], search=search)
    optimizer.step(lambda: weight.square().sum())
    optimizer.step(lambda: weight.square().sum().double())
    assert [start.dtype for start in search.starts] == [torch.float32, torch.float64]


class Repelled(torch.optim.SGD):
    """Goes uphill."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for param in self.param_groups[0]["params"]:
            param.add_(param.grad, alpha=0.1)


@WAYS
@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("any_slope", [False, True])
def test_it_is_asked_where_the_update_climbs_only_if_it_wants_to(any_slope: bool) -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    search = Told()
    search.any_slope = any_slope
    optimizer = LineSearch(Repelled([weight], lr=0.1), search=search, search_prob=1.0)
    optimizer.step(lambda: weight.square().sum())
    assert [start.slope > 0.0 for start in search.starts] == [True] * any_slope
    assert (optimizer.last_search is not None) == any_slope


@pytest.mark.parametrize("any_slope", [False, True])
def test_without_any_slope_directions_restart_where_momentum_climbs(any_slope: bool) -> None:
    weight, search = nn.Parameter(torch.zeros(1, dtype=torch.float64)), Told()
    search.any_slope = any_slope
    optimizer = ConjugateDescent([weight], momentum=0.9, search=search)
    optimizer.step(lambda: -10.0 * weight.sum())
    optimizer.step(lambda: weight.sum())  # -g + 0.9·p = -1 + 9
    assert search.starts[1].slope == pytest.approx(8.0 if any_slope else -1.0)
    assert optimizer.param_groups[0]["beta"] == (0.9 if any_slope else 0.0)


# What it gives


@WAYS
@KINDS
@pytest.mark.usefixtures("on")
def test_every_evaluation_is_counted(kind: Any) -> None:
    search = Told(Remembering())
    run = kind(search=search, **EACH)
    for _ in range(4):
        run.step()
        assert run.optimizer.last_search == search.said[-1]
        assert run.calls == 1 + run.optimizer.last_search.evaluations == 3
        assert search.said[-1].trial_losses[0] != search.said[-1].trial_losses[1]


@WAYS
@KINDS
@pytest.mark.usefixtures("on")
def test_its_memory_is_in_the_groups(kind: Any) -> None:
    search = Told(Remembering())
    run = kind(search=search, **EACH)
    for step in range(4):
        for group in run.optimizer.param_groups:
            assert (group["asked"], group["tried"]) == (step, 0.5 + 2 * step)
        run.step()
        assert search.starts[-1].memory == {"asked": step, "tried": 0.5 + 2 * step}


def saved_and_loaded(run: Any, kind: Any) -> Any:
    file = io.BytesIO()
    torch.save([run.model.state_dict(), run.optimizer.state_dict()], file)
    file.seek(0)
    model, optimizer = torch.load(file, weights_only=True)
    other = kind(search=Remembering(), **EACH)
    other.model.load_state_dict(model)
    other.optimizer.load_state_dict(optimizer)
    return other


def pickled(run: Any, kind: Any) -> Any:
    other = kind(search=first_trial_is_best, **EACH)
    other.model, other.optimizer = pickle.loads(pickle.dumps((run.model, run.optimizer)))
    return other


def copied(run: Any, kind: Any) -> Any:
    return copy.deepcopy(run)


@WAYS
@KINDS
@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("kept", [saved_and_loaded, pickled, copied])
def test_its_memory_survives(kind: Any, kept: Any) -> None:
    run = kind(search=Remembering(), **EACH)
    for _ in range(3):
        run.step()
    other = kept(run, kind)
    ends = []
    for each in (run, other):
        each.inputs, each.targets = run.inputs, run.targets
        torch.manual_seed(3)
        wrapped_run.random.seed(3)
        wrapped_run.numpy.random.seed(3)
        for _ in range(3):
            each.step()
        ends.append(each.snapshot())
    assert ends[0][1]["param_groups"][0]["asked"] == 6.0
    assert_same(*ends)


def test_a_plain_function_is_pickled_by_its_name() -> None:
    weight = nn.Parameter(torch.ones(2))
    again = pickle.loads(pickle.dumps(ConjugateDescent([weight], search=first_trial_is_best)))
    assert again.options.search is first_trial_is_best


def test_a_state_from_before_the_search_gets_its_first_memory() -> None:
    weight = nn.Parameter(torch.ones(2))
    plain = CGQ([weight])
    plain.step(lambda: weight.square().sum())
    other = ConjugateDescent([weight], search=Remembering())
    other.load_state_dict(plain.state_dict())
    assert other.param_groups[0]["tried"] == 0.5
    other.step(lambda: weight.square().sum())
    assert other.param_groups[0]["tried"] == 2.5


def test_what_is_no_search_is_refused() -> None:
    weights = [nn.Parameter(torch.ones(2))]
    for make in (
        ConjugateDescent,
        lambda params, search: LineSearch(torch.optim.SGD(params), search=search),
    ):
        with pytest.raises(ValueError, match="Invalid search"):
            make(weights, search="golden section")
    with pytest.raises(TypeError, match="search"):
        CGQ(weights, search=first_trial_is_best)  # type: ignore[call-arg]


@WAYS
@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("settings", [{}, {"fit": least_squares, "max_fits": 2}], ids=option_id)
def test_with_the_paper_s_search_it_is_cgq(settings: dict[str, Any]) -> None:
    """Bit for bit, where some batches are searched and others not."""
    ends = []
    for options in (settings, {"search": QuadraticSearch(**settings)}):
        run, searches = PlainRun(search_prob=0.5, **options), []
        for _ in range(10):
            run.step()
            searches.append(run.optimizer.last_search)
        assert None in searches
        assert any(searches)
        ends.append((run.snapshot(), searches))
    assert_same(*ends)


# What fails


class Once:
    """As `Remembering`, but fails when told to: it takes nothing, or raises."""

    needs_length = True

    def __init__(self) -> None:
        self.fails, self.after = "", 1
        self.memory = Remembering().memory
        self.well = Remembering()

    def __call__(self, phi: Phi, start: Start) -> Search:
        fails, self.fails = self.fails, ""
        if not fails:
            return self.well(phi, start)
        steps = [start.trial * 2.0**-k for k in range(self.after)]
        losses = [phi(step) for step in steps]
        if fails == "stops":
            raise KeyboardInterrupt
        if fails == "raises":
            raise ZeroDivisionError
        memory = {"asked": 77.0, "tried": 77.0}
        return outcome(start, steps, losses, step_size=0.0, accepted=False, memory=memory)


def snapshot(run: Any) -> Any:
    """All but how many steps there were: a skipped one counts."""
    model, state, generators = run.snapshot()
    for group in state["param_groups"]:
        del group["skipped"], group["steps"]
    return model, state, generators


@WAYS
@KINDS
@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize("after", [1, 3])
def test_a_step_of_zero_after_trials_is_skipped(kind: Any, warm_up: int, after: int) -> None:
    search = Once()
    run = kind(search=search, **EACH)
    for _ in range(warm_up):
        run.step()
    before = snapshot(run)
    search.fails, search.after = "skips", after
    run.step()
    assert_same(snapshot(run), before)
    assert int(run.optimizer.param_groups[0]["skipped"]) == 1
    assert run.optimizer.last_search.evaluations == after
    assert run.calls == 1 + after
    for _ in range(3):
        run.step()
    after_it = snapshot(run)
    clean = kind(search=Once(), **EACH)
    for _ in range(warm_up + 3):
        clean.step()
    assert_same(after_it[:2], snapshot(clean)[:2])


@WAYS
@KINDS
@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("fails", ["raises", "stops"])
def test_an_exception_in_it_undoes_the_step(
    kind: Any, warm_up: int, after: int, fails: str
) -> None:
    search = Once()
    run = kind(search=search, **EACH)
    for _ in range(warm_up):
        run.step()
    before = run.snapshot()
    search.fails, search.after = fails, after
    with pytest.raises(ZeroDivisionError if fails == "raises" else KeyboardInterrupt):
        run.step()
    assert_same(run.snapshot(), before)
    for _ in range(3):
        run.step()
    after_it = run.snapshot()
    clean = kind(search=Once(), **EACH)
    for _ in range(warm_up + 3):
        clean.step()
    assert_same(after_it, clean.snapshot())


@KINDS
def test_no_trials_and_a_step_of_zero_is_a_step_that_stays(kind: Any) -> None:
    run = kind(search=lambda phi, start: outcome(start, [], []), **EACH)
    before = [param.clone() for param in run.model.parameters()]
    run.step()
    assert all(map(torch.equal, run.model.parameters(), before))
    assert run.optimizer.param_groups[0]["skipped"] == 0
    assert run.optimizer.param_groups[0]["steps"] == 1
    assert (
        run.model.state_dict()[
            "layers.1.num_batches_tracked" if kind is PlainRun else "1.num_batches_tracked"
        ]
        == 1
    )


@WAYS
@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("kind", ["CGQ", "LineSearch"])
@pytest.mark.parametrize("step", [math.nan, math.inf, -0.5])
def test_a_step_that_cannot_be_taken_is_refused_and_rolled_back(step: float, kind: str) -> None:
    weight = nn.Parameter(torch.ones(3))

    def wrong(phi: Phi, start: Start) -> Search:
        return outcome(start, [start.trial], [phi(start.trial)], step_size=step)

    base = torch.optim.SGD([weight], lr=0.1)
    optimizer: Any = LineSearch(base, search=wrong, **EACH)
    if kind == "CGQ":
        optimizer = ConjugateDescent([weight], search=wrong)
    with pytest.raises(ValueError, match=r"returned the step .* Return a finite number"):
        optimizer.step(lambda: weight.square().sum())
    assert torch.equal(weight, torch.ones(3))
    assert optimizer.param_groups[0]["steps"] == 0
    assert not optimizer.state


def test_what_is_no_record_of_a_search_is_refused() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = ConjugateDescent([weight], search=lambda phi, start: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must return a cgq\.Search, not None"):
        optimizer.step(lambda: weight.square().sum())
    assert torch.equal(weight, torch.ones(3))


def test_a_step_beyond_the_ceiling_counts_as_the_ceiling() -> None:
    weight = nn.Parameter(torch.ones(3))

    def long(phi: Phi, start: Start) -> Search:
        return outcome(start, [start.trial], [phi(start.trial)], step_size=100.0)

    optimizer = ConjugateDescent([weight], lr=0.3, search=long)
    optimizer.step(lambda: weight.square().sum())
    group = optimizer.param_groups[0]
    assert (group["step_size"], group["average"]) == (0.3, 0.3)


def test_a_record_that_cannot_be_read_undoes_all_of_the_step() -> None:
    """Its curvature is looked at before anything is remembered that could not be taken back."""
    calls = []

    def search(phi: Callable[[float], float], start: Start) -> Search:
        calls.append(start.trial)
        curvature: Any = None if len(calls) == 4 else 1.0
        return Search(
            *(start.loss, start.slope, curvature, (start.trial,), (phi(start.trial),), start.trial),
            accepted=True,
            capped=False,
        )

    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5))
    optimizer = ConjugateDescent([weight], search=search)

    def kept() -> list[Tensor]:
        return [tensor.clone() for tensor in (weight.detach(), *optimizer.state[weight].values())]

    def closure() -> Tensor:
        return (torch.arange(1.0, 6.0) * weight.square()).sum()

    for _ in range(3):
        optimizer.step(closure)
    before = kept()
    with pytest.raises(TypeError):
        optimizer.step(closure)
    assert all(map(torch.equal, before, kept()))


def test_a_short_first_trial_of_it_makes_no_rate_unknown() -> None:
    """The guard of LineSearch's rate goes by the ceiling, wherever a search begins."""

    def halving(phi: Callable[[float], float], start: Start) -> Search:
        step = start.ceiling / 1024
        losses = [phi(step)]
        return Search(
            *(start.loss, start.slope, 0.0, (step,), tuple(losses), start.ceiling),
            accepted=True,
            capped=True,
        )

    torch.manual_seed(0)
    weight = nn.Parameter(torch.ones(50, dtype=torch.float64))
    optimizer = LineSearch(torch.optim.SGD([weight], lr=0.1), search=halving)
    group = optimizer.param_groups[0]
    for _ in range(30):
        noise = torch.randn(50, dtype=torch.float64)
        optimizer.step(lambda noise=noise: 2.0 + 0.01 * noise @ weight)
        assert group["known_rate"] >= 0.4 * group["step_size"]


class Level:
    """Keeps a mean of losses under a name of its own choice."""

    def __init__(self, name: str, returned: str | None = None) -> None:
        self.memory, self._returned = {name: 0.0}, returned or name

    def __call__(self, phi: Phi, start: Start) -> Search:
        level = 0.9 * next(iter(start.memory.values())) + 0.1 * start.loss
        return outcome(start, [start.trial], [phi(start.trial)], memory={self._returned: level})


@pytest.mark.parametrize("name", ["lr", "weight_decay", "steps", "average", "params", "alert"])
def test_a_search_does_not_keep_its_numbers_under_a_name_that_is_taken(name: str) -> None:
    weights = [nn.Parameter(torch.ones(3))]
    with pytest.raises(ValueError, match=rf"keeps {name}, .*another name"):
        ConjugateDescent(weights, search=Level(name), max_relative_step=0.01, search_prob=0.5)


@pytest.mark.parametrize("name", ["lr", "momentum", "nesterov", "average", "radius", "full_lr"])
def test_nor_under_one_of_the_base(name: str) -> None:
    base = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match=rf"keeps {name}, .*another name"):
        LineSearch(base, search=Level(name))


def test_a_search_returns_no_memory_that_it_has_not_named() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = ConjugateDescent([weight], search=Level("level", returned="lr"))
    with pytest.raises(ValueError, match="Name what it keeps"):
        optimizer.step(lambda: weight.square().sum())
    assert torch.equal(weight, torch.ones(3))
    assert optimizer.param_groups[0]["lr"] == 0.3
