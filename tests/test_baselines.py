"""Armijo and PAL: their defining conditions, their probes, and slow, obvious twins of both."""

from __future__ import annotations

import copy
import io
import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_accelerator import as_accelerator
from torch import Tensor, nn

from cgq import ConjugateDescent, Search, Start
from cgqbench.methods.baselines import PAL, Armijo
from cgqbench.methods.baselines.armijo import FALLBACK, BacktrackingSearch
from cgqbench.methods.baselines.pal import ParabolicSearch

Loss = Callable[[], Tensor]
Make = Callable[[Any], ConjugateDescent]


def armijo(params: Any, **options: Any) -> Armijo:
    return Armijo(params, **{"growth": 2 ** (1 / 20), **options})


BOTH = pytest.mark.parametrize("make", [armijo, PAL], ids=["armijo", "pal"])


def searched(optimizer: ConjugateDescent) -> Search:
    assert optimizer.last_search is not None
    return optimizer.last_search


# Problems


def quadratic(seed: int) -> tuple[list[nn.Parameter], Loss]:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    theta = nn.Parameter(torch.randn(6, generator=generator, dtype=torch.float64))
    return [theta], lambda: (root @ theta).square().sum() + 0.1 * theta.square().sum()


def logistic(seed: int) -> tuple[list[nn.Parameter], Loss]:
    torch.manual_seed(seed)
    model = nn.Linear(5, 3).double()
    inputs, classes = 3 * torch.randn(20, 5).double(), torch.randint(3, (20,))
    return list(model.parameters()), lambda: nn.functional.cross_entropy(model(inputs), classes)


def network(seed: int) -> tuple[list[nn.Parameter], Loss]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    inputs, targets = torch.randn(16, 4).double(), 3 * torch.randn(16, 1).double()
    return list(model.parameters()), lambda: (model(inputs) - targets).square().mean()


PROBLEMS = pytest.mark.parametrize("problem", [quadratic, logistic, network])


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def put(params: list[nn.Parameter], values: Tensor) -> None:
    sizes = [param.numel() for param in params]
    with torch.no_grad():
        for param, value in zip(params, values.split(sizes), strict=True):
            param.copy_(value.view(param.shape))


def value_at(params: list[nn.Parameter], loss: Loss, point: Tensor) -> float:
    here = flat(params)
    put(params, point)
    value = loss().item()
    put(params, here)
    return value


# Armijo: the condition, the longest step, growth and bound


@PROBLEMS
@pytest.mark.parametrize("seed", range(3))
def test_armijo_takes_the_longest_step_that_meets_the_condition(problem: Any, seed: int) -> None:
    params, loss = problem(seed)
    optimizer = armijo(params, lr=4.0)
    backtracked = 0
    for _ in range(30):
        before = flat(params)
        trial = optimizer.param_groups[0]["next_trial"]
        at_zero = loss()
        g = flat(list(torch.autograd.grad(at_zero, params)))
        optimizer.step(loss)
        search = searched(optimizer)
        alpha = optimizer.param_groups[0]["step_size"]

        def excess(step: float) -> float:
            wanted = at_zero.item() - 0.1 * step * (g @ g).item()
            return value_at(params, loss, before - step * g) - wanted

        rounding = 1e-13 * abs(at_zero.item())
        assert torch.allclose(flat(params), before - alpha * g, rtol=0, atol=1e-13)
        assert excess(alpha) <= rounding
        assert search.accepted
        assert search.step_size == alpha == trial * 0.9 ** (search.evaluations - 1)
        if search.evaluations > 1:
            backtracked += 1
            assert excess(alpha / 0.9) > -rounding
        assert optimizer.param_groups[0]["next_trial"] == min(alpha * 2 ** (1 / 20), 10.0)
    assert backtracked


def test_armijo_grows_up_to_its_bound() -> None:
    theta = nn.Parameter(torch.full((1,), 3.0, dtype=torch.float64))
    optimizer = Armijo([theta], lr=1.0, growth=2.0, max_step=5.0)
    seen = []
    for _ in range(5):
        optimizer.step(lambda: -theta.sum())
        seen.append((optimizer.param_groups[0]["step_size"], searched(optimizer).capped))
    assert seen == [(1.0, False), (2.0, False), (4.0, False), (5.0, True), (5.0, True)]
    assert theta.item() == 3.0 + 1 + 2 + 4 + 5 + 5


def test_armijo_starts_within_its_bound() -> None:
    theta = nn.Parameter(torch.ones(1))
    optimizer = Armijo([theta], lr=7.0, growth=1.0, max_step=2.0)
    optimizer.step(lambda: -theta.sum())
    assert searched(optimizer).trial_steps == (2.0,)


def test_armijo_falls_back_to_a_tiny_step() -> None:
    theta = nn.Parameter(torch.full((1,), 2.0, dtype=torch.float64))
    optimizer = Armijo([theta], lr=0.5, growth=1.01, max_backtracks=4)
    calls = itertools.count()

    def closure() -> Tensor:  # every trial is higher than where the step started
        return theta.sum() + 10.0 * (next(calls) % 6 > 0)

    optimizer.step(closure)
    search = searched(optimizer)
    assert search.trial_steps == tuple(0.5 * 0.9**k for k in range(5))
    assert not search.accepted
    assert search.step_size == optimizer.param_groups[0]["step_size"] == FALLBACK
    assert theta.item() == 2.0 - FALLBACK
    assert optimizer.param_groups[0]["skipped"] == 0
    assert optimizer.param_groups[0]["next_trial"] == 0.5 * 0.9**4 * 1.01
    for _ in range(40):  # 0.9^4 at a time would come to less
        optimizer.step(closure)
    assert optimizer.param_groups[0]["next_trial"] == FALLBACK * 1.01


def test_armijo_backs_off_from_trials_that_are_not_finite() -> None:
    losses = {4.0: math.nan, 2.0: -math.inf, 1.0: math.inf, 0.5: 0.1}
    search = BacktrackingSearch(4.0, growth=1.5, c=0.1, backtrack=0.5, max_backtracks=9)
    start = Start(1.0, -1.0, trial=0.1, ceiling=10.0, memory=search.memory)
    found = search(losses.__getitem__, start)
    assert (found.step_size, found.accepted, found.evaluations) == (0.5, True, 4)
    assert found.memory == {"next_trial": 0.75}


def test_armijo_asks_for_no_decrease_below_the_precision_of_the_loss() -> None:
    def found(dtype: torch.dtype) -> Search:
        search = BacktrackingSearch(1.0, growth=1.0, c=0.1, backtrack=0.5, max_backtracks=3)
        start = Start(1.0, -1e-9, trial=0.1, ceiling=10.0, dtype=dtype, memory=search.memory)
        return search(lambda step: 1.0, start)

    assert found(torch.float32).step_size == 1.0
    assert found(torch.float64).step_size == FALLBACK


# PAL: the parabola's minimum, the cases, the cap, the unit direction


@pytest.mark.parametrize("start", [-1.7, 0.3, 2.9])
@pytest.mark.parametrize("curvature", [0.1, 1.0, 30.0])
def test_pal_finds_the_minimum_of_a_parabola_in_one_step(start: float, curvature: float) -> None:
    theta = nn.Parameter(torch.full((1,), start, dtype=torch.float64))
    optimizer = PAL([theta], step_factor=1.0)
    optimizer.step(lambda: curvature * (theta - 1.0).square().sum() - 2.0)
    assert theta.item() == pytest.approx(1.0, abs=1e-12)
    search = searched(optimizer)
    length = 2.0 * curvature * abs(start - 1.0)  # |d| = |g|, and a step s is α = s/|d|
    assert search.trial_steps == pytest.approx([0.5 / length])
    assert search.step_size * length == pytest.approx(abs(start - 1.0))
    assert search.slope / length == pytest.approx(-2.0 * curvature * abs(start - 1.0))
    assert search.curvature / length**2 == pytest.approx(2.0 * curvature)
    assert (search.evaluations, search.accepted, search.capped) == (1, True, False)
    assert optimizer.param_groups[0]["step_size"] == search.step_size


def pal_search(max_step: float) -> ParabolicSearch:
    return ParabolicSearch(measuring_step=0.5, max_step=max_step, step_factor=1.5)


def along(slope: float, length: float = 1.0) -> Start:
    """The start at a loss of 5 of a line of this |d|."""
    return Start(5.0, slope, trial=0.1, ceiling=math.inf, squared_length=length**2)


@pytest.mark.parametrize(
    ("phi", "slope", "step", "capped"),
    [
        (lambda s: 5.0 - 2.0 * s + 1.0 * s * s, -2.0, 1.5, False),  # convex: 1.5 · minimum
        (lambda s: 5.0 - 2.0 * s + 0.1 * s * s, -2.0, 3.16, True),  # convex, beyond the cap
        (lambda s: 5.0 - 2.0 * s - 1.0 * s * s, -2.0, 0.5, False),  # concave: the probe itself
        (lambda s: 5.0 - 2.0 * s, -2.0, 0.5, False),  # straight: the same
    ],
    ids=["convex", "capped", "concave", "straight"],
)
@pytest.mark.parametrize("length", [1.0, 8.0, 0.3])
def test_cases_of_pal(phi: Any, slope: float, step: float, capped: bool, length: float) -> None:
    """φ and its slope here are of a length s; a search sees α = s/|d|."""
    found = pal_search(3.16)(
        lambda alpha: phi(length * alpha), along(slope=length * slope, length=length)
    )
    assert length * found.step_size == pytest.approx(step, rel=1e-12)
    assert found.trial_steps == pytest.approx((0.5 / length,), rel=1e-12)
    assert (found.accepted, found.capped) == (True, capped)


@pytest.mark.parametrize("slope", [0.0, 2.0])
def test_pal_stays_where_its_direction_does_not_descend(slope: float) -> None:
    found = pal_search(3.16)(lambda s: 1 / 0, along(slope))
    assert (found.step_size, found.evaluations, found.accepted) == (0.0, 0, False)


def test_pal_takes_the_probe_only_up_to_the_cap() -> None:
    found = pal_search(0.2)(lambda s: 5.0 - s * s, along(slope=-1.0))
    assert (found.step_size, found.capped, found.trial_steps) == (0.2, True, (0.5,))


def test_pal_remembers_a_direction_that_climbs() -> None:
    theta = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = PAL([theta], direction_factor=0.9)
    optimizer.step(lambda: -10.0 * theta.sum())
    here = theta.item()
    optimizer.step(lambda: theta.sum())  # d = -1 + 0.9·10 climbs
    assert theta.item() == here == 0.5
    assert optimizer.param_groups[0]["step_size"] == 0.0
    assert optimizer.param_groups[0]["skipped"] == 0
    assert optimizer.state[theta]["direction"].item() == 8.0


@PROBLEMS
@pytest.mark.parametrize("measuring_step", [0.01, 0.5])
def test_pal_probes_at_its_measuring_step_and_never_goes_beyond_its_cap(
    problem: Any, measuring_step: float
) -> None:
    params, loss = problem(0)
    optimizer = PAL(params, measuring_step, max_step=0.02)
    met: list[Tensor] = []

    def closure() -> Tensor:
        met.append(flat(params))
        return loss()

    capped = 0
    for _ in range(20):
        met.clear()
        optimizer.step(closure)
        search = searched(optimizer)
        length = (flat(params) - met[0]).norm().item()
        d = flat([optimizer.state[param]["direction"] for param in params]).norm().item()
        assert length <= 0.02 + 1e-12
        assert length == pytest.approx(search.step_size * d, rel=1e-10)
        assert len(met) == 1 + search.evaluations
        if search.evaluations:
            assert (met[1] - met[0]).norm().item() == pytest.approx(measuring_step, rel=1e-10)
            assert search.trial_steps == pytest.approx([measuring_step / d], rel=1e-12)
        capped += search.capped
        assert search.capped == (length == pytest.approx(0.02, rel=1e-12))
    assert capped


@BOTH
@pytest.mark.parametrize("scale", [0.0, 1e-200])
def test_direction_that_vanishes(make: Make, scale: float) -> None:
    theta = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = make([theta])
    calls = itertools.count(1)

    def closure() -> Tensor:
        next(calls)
        return scale * theta.sum() + 1.0

    optimizer.step(closure)
    assert torch.equal(theta, torch.ones_like(theta))
    assert next(calls) == 2, "nothing was measured"
    search = optimizer.last_search  # PAL's search is asked wherever the direction leads
    assert (search is None) == (make is armijo)
    assert search is None or (search.evaluations, search.step_size) == (0, 0.0)
    assert optimizer.param_groups[0]["skipped"] == 0


# Slow, obvious twins


class Twin:
    """θ and d as one vector each; every loss and gradient from scratch."""

    def __init__(self, params: list[nn.Parameter], loss: Loss) -> None:
        self.params, self.loss, self.d = params, loss, torch.zeros_like(flat(params))

    def gradient(self) -> tuple[float, Tensor]:
        loss = self.loss()
        return loss.item(), flat(list(torch.autograd.grad(loss, self.params)))

    def at(self, point: Tensor) -> float:
        return value_at(self.params, self.loss, point)


class ArmijoTwin(Twin):
    alpha = 0.5

    def step(self) -> None:
        theta, (loss, g) = flat(self.params), self.gradient()
        while self.at(theta - self.alpha * g) > loss - 0.1 * self.alpha * (g @ g).item():
            self.alpha *= 0.9
        put(self.params, theta - self.alpha * g)
        self.alpha = min(self.alpha * 2 ** (1 / 20), 10.0)


class PALTwin(Twin):
    def step(self) -> None:
        theta, (loss, g) = flat(self.params), self.gradient()
        self.d = -g + 0.4 * self.d
        unit = self.d / self.d.norm()
        b = (g @ unit).item()
        a = (self.at(theta + 0.5 * unit) - loss - 0.5 * b) / 0.25
        s = 0.0
        if b < 0:
            s = -b / (2 * a) / 0.6 if a > 0 else 0.5
        put(self.params, theta + min(s, 3.16) * unit)


@pytest.mark.parametrize(
    ("make", "twin"), [(armijo, ArmijoTwin), (PAL, PALTwin)], ids=["armijo", "pal"]
)
@pytest.mark.parametrize("problem", [logistic, network])
def test_twin(make: Make, twin: type[Any], problem: Any) -> None:
    params, loss = problem(1)
    optimizer = make(params)
    slow = twin(*problem(1))
    for step in range(100):
        optimizer.step(loss)
        slow.step()
        assert (flat(params) - flat(slow.params)).abs().max() <= 1e-12, step


@BOTH
def test_the_same_steps_on_an_accelerator(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    params, loss = network(1)
    host = make(params)
    twin_params, twin_loss = network(1)
    other = make(twin_params)
    for _ in range(30):
        host.step(loss)
        with monkeypatch.context() as patch:
            as_accelerator(patch)
            other.step(twin_loss)
        search, twin = searched(host), searched(other)
        assert twin.trial_steps == pytest.approx(search.trial_steps, rel=1e-9)
        assert (twin.accepted, twin.capped) == (search.accepted, search.capped)
        assert (flat(params) - flat(twin_params)).abs().max() <= 1e-10


# Honest probes


class Noisy(nn.Module):
    """BatchNorm, Dropout, draws from Python's generator; keeps the masks it has used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(8, 1)
        self.masks: list[Tensor] = []
        self.graphs: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        dropped = self.dropout(hidden)
        self.masks.append(dropped != 0)
        self.graphs.append(dropped.requires_grad)
        return self.last(dropped) * (1 + 0.1 * random.random())


class Run:
    """A small training run whose closure can be made to misbehave at a given call."""

    def __init__(self, make: Make) -> None:
        torch.manual_seed(0)
        random.seed(0)
        self.model = Noisy().double()
        self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.optimizer = make(
            [
                {"params": self.model.first.parameters()},
                {"params": [*self.model.last.parameters(), self.unused]},
            ]
        )
        self.inputs, self.targets = torch.randn(16, 4).double(), torch.randn(16, 1).double()
        self.calls = 0
        self.mischief: dict[int, Callable[[Tensor], Any]] = {}

    def closure(self) -> Any:
        loss = nn.functional.mse_loss(self.model(self.inputs), self.targets)
        act = self.mischief.get(self.calls)
        self.calls += 1
        return loss if act is None else act(loss)

    def step(self, mischief: dict[int, Callable[[Tensor], Any]] | None = None) -> Any:
        self.calls, self.mischief = 0, mischief or {}
        self.model.masks.clear()
        self.model.graphs.clear()
        return self.optimizer.step(self.closure)

    def snapshot(self) -> Any:
        state = copy.deepcopy(self.optimizer.state_dict())
        for group in state["param_groups"]:
            del group["skipped"]
        generators = [random.getstate(), torch.get_rng_state()]
        return [copy.deepcopy(self.model.state_dict()), state, generators]


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        assert_same(list(a.values()), list(b.values()))
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


@BOTH
def test_probes_are_honest(make: Make) -> None:
    run = Run(make)
    evaluations, masks = 0, []
    for step in range(1, 21):
        weights = copy.deepcopy(run.model.state_dict())
        generators = random.getstate(), torch.get_rng_state()
        run.closure()
        buffers = [buffer.clone() for buffer in run.model.buffers()]
        after = random.getstate(), torch.get_rng_state()
        run.model.load_state_dict(weights)
        random.setstate(generators[0])
        torch.set_rng_state(generators[1])
        run.step()
        assert_same(list(run.model.buffers()), buffers)
        assert_same((random.getstate(), torch.get_rng_state()), after)
        assert run.model.first[1].num_batches_tracked == step
        search = searched(run.optimizer)
        assert run.calls == len(run.model.masks) == 1 + search.evaluations
        assert run.model.graphs == [True] + [False] * search.evaluations
        evaluations += search.evaluations
        assert all(torch.equal(mask, run.model.masks[0]) for mask in run.model.masks)
        masks.append(run.model.masks[0])
    assert evaluations >= 20 if make is PAL else evaluations > 20
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(masks))


@BOTH
def test_groups_are_one_line(make: Make) -> None:
    params, loss = network(3)
    twin_params, twin_loss = network(3)
    one, two = make(params), make([{"params": twin_params[:1]}, {"params": twin_params[1:]}])
    for _ in range(10):
        one.step(loss)
        two.step(twin_loss)
    assert torch.allclose(flat(params), flat(twin_params), rtol=0, atol=1e-12)
    a, b = ({k: v for k, v in g.items() if k != "params"} for g in two.param_groups)
    assert a == b
    assert a["step_size"] > 0
    with pytest.raises(ValueError, match="one line runs through all groups"):
        make([{"params": params[:1], "momentum": 0.1}, {"params": params[1:], "momentum": 0.2}])
    two.param_groups[1]["momentum"] = 0.1
    before = flat(twin_params)
    with pytest.raises(ValueError, match="one line runs through all groups"):
        two.step(twin_loss)
    assert torch.equal(flat(twin_params), before)


@BOTH
def test_parameter_without_gradient_stays(make: Make) -> None:
    run = Run(make)
    for _ in range(3):
        run.step()
    assert torch.equal(run.unused, torch.ones_like(run.unused))
    assert run.unused not in run.optimizer.state


@BOTH
@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_loss_that_is_not_finite_is_skipped(make: Make, warm_up: int, value: float) -> None:
    run = Run(make)
    for _ in range(warm_up):
        run.step()
    before = run.snapshot()
    run.step({0: lambda loss: loss * value})
    assert run.calls == 1
    assert_same(run.snapshot(), before)
    assert [group["skipped"] for group in run.optimizer.param_groups] == [1, 1]
    assert run.optimizer.last_search is None


@BOTH
@pytest.mark.parametrize("warm_up", [0, 3])
def test_gradient_that_is_not_finite_is_skipped(make: Make, warm_up: int) -> None:
    run = Run(make)
    for _ in range(warm_up):
        run.step()
    before = run.snapshot()
    run.step({0: lambda loss: loss + torch.sqrt(0.0 * loss)})
    assert_same(run.snapshot(), before)
    assert run.optimizer.param_groups[0]["skipped"] == 1


@BOTH
@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_search_without_a_finite_trial_is_skipped(make: Make, warm_up: int, value: float) -> None:
    run = Run(make)
    for _ in range(warm_up):
        run.step()
    before = run.snapshot()
    run.step({call: lambda loss: loss * value for call in range(1, 200)})
    assert_same(run.snapshot(), before)
    assert run.optimizer.param_groups[0]["skipped"] == 1
    assert searched(run.optimizer).step_size == 0.0
    assert searched(run.optimizer).evaluations == (1 if make is PAL else 101)


@BOTH
@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize("call", [0, 1])
@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=["error", "stop"])
def test_closure_that_raises(make: Make, warm_up: int, call: int, error: BaseException) -> None:
    def act(loss: Tensor) -> Any:
        raise error

    run = Run(make)
    for _ in range(warm_up):
        run.step()
    before = run.snapshot()
    with pytest.raises(type(error)):
        run.step(dict.fromkeys(range(call, 200), act))
    assert_same(run.snapshot(), before)
    for _ in range(3):
        run.step()
    after = run.snapshot()
    clean = Run(make)  # seeds the generators again
    for _ in range(warm_up + 3):
        clean.step()
    assert_same(clean.snapshot(), after)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_resuming_equals_continuing(make: Make, dtype: torch.dtype) -> None:
    straight = Run(make)
    straight.model.to(dtype)
    straight.inputs, straight.targets = straight.inputs.to(dtype), straight.targets.to(dtype)
    for _ in range(5):
        straight.step()
    file = io.BytesIO()
    torch.save([straight.model.state_dict(), straight.optimizer.state_dict()], file)
    generators = random.getstate(), torch.get_rng_state()
    for _ in range(5):
        straight.step()
    resumed = Run(make)
    resumed.model.to(dtype)
    resumed.inputs, resumed.targets = straight.inputs, straight.targets
    file.seek(0)
    model, optimizer = torch.load(file, weights_only=True)
    resumed.model.load_state_dict(model)
    resumed.optimizer.load_state_dict(optimizer)
    random.setstate(generators[0])
    torch.set_rng_state(generators[1])
    for _ in range(5):
        resumed.step()
    assert_same(resumed.snapshot(), straight.snapshot())


@BOTH
def test_copy_goes_on(make: Make) -> None:
    run = Run(make)
    run.step()
    copied = copy.deepcopy(run)
    generators = random.getstate(), torch.get_rng_state()
    run.step()
    expected = run.snapshot()
    random.setstate(generators[0])
    torch.set_rng_state(generators[1])
    copied.step()
    assert_same(copied.snapshot(), expected)


@BOTH
@pytest.mark.filterwarnings("ignore:This closure runs backward:UserWarning")
def test_three_kinds_of_closure_agree(make: Make) -> None:
    ends = []
    for kind in range(3):
        params, loss = network(2)
        optimizer = make(params)

        def asked(backward: bool) -> Tensor:
            value = loss()
            if backward:
                value.backward()
            return value

        def classic() -> Tensor:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        for _ in range(5):
            optimizer.step([loss, asked, classic][kind])
        ends.append(flat(params))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


@BOTH
@pytest.mark.parametrize("told", ["step()", "a closure that returns None"])
def test_without_a_loss_the_last_step_found_is_taken(make: Make, told: str) -> None:
    params, loss = network(2)
    optimizer = make(params)

    def silent() -> None:
        loss().backward()

    for _ in range(3):
        optimizer.step(loss)
    alpha = optimizer.param_groups[0]["step_size"]
    assert alpha > 0.0
    memory = optimizer.param_groups[0].get("next_trial")
    beta = 0.4 if make is PAL else 0.0
    d = flat([optimizer.state[param]["direction"] for param in params])
    for _ in range(2):
        before = flat(params)
        d = -flat(list(torch.autograd.grad(loss(), params))) + beta * d
        optimizer.zero_grad()
        if told == "step()":
            silent()
            optimizer.step()
        else:
            assert optimizer.step(silent) is None
        assert optimizer.last_search is None
        assert torch.allclose(flat(params), before + alpha * d, rtol=0, atol=1e-13)
        assert optimizer.param_groups[0]["step_size"] == alpha
        assert optimizer.param_groups[0].get("next_trial") == memory


@BOTH
def test_without_anything_to_go_by_nothing_moves(make: Make) -> None:
    run = Run(make)
    before = run.snapshot()
    run.optimizer.step()
    assert_same(run.snapshot(), before)


def test_settings_are_the_search_s_own() -> None:
    """Only what changes from step to step is in the groups, where checkpoints keep it."""
    theta = nn.Parameter(torch.ones(1))
    kept = {"step_size", "next_trial", "skipped", "lr"}
    optimizer = armijo([theta], lr=0.5, c=0.2, backtrack=0.7, max_backtracks=5, max_step=3.0)
    group = optimizer.param_groups[0]
    assert kept <= group.keys()
    assert {"growth", "c", "backtrack", "max_backtracks", "max_step"}.isdisjoint(group)
    assert (group["lr"], group["next_trial"]) == (3.0, 0.5)
    search = BacktrackingSearch(0.5, 2 ** (1 / 20), c=0.2, backtrack=0.7, max_backtracks=5)
    assert optimizer.options.search == search
    pal = PAL([theta], 0.1, max_step=1.0, step_factor=2.0, direction_factor=0.3)
    assert {"measuring_step", "max_step", "step_factor"}.isdisjoint(pal.param_groups[0])
    assert pal.options.search == ParabolicSearch(0.1, max_step=1.0, step_factor=2.0)
    assert pal.options.momentum == 0.3


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (armijo, {"lr": 0.0}),
        (armijo, {"growth": 0.9}),
        (armijo, {"c": 1.0}),
        (armijo, {"backtrack": 1.0}),
        (armijo, {"max_backtracks": -1}),
        (armijo, {"max_backtracks": 2.5}),
        (armijo, {"max_step": math.nan}),
        (PAL, {"measuring_step": 0.0}),
        (PAL, {"max_step": -1.0}),
        (PAL, {"step_factor": math.inf}),
        (PAL, {"direction_factor": 1.0}),
    ],
)
def test_invalid_settings_are_named(make: Any, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"Invalid {name} value"):
        make([nn.Parameter(torch.ones(1))], **options)
