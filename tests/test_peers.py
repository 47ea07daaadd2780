"""Where other optimizers disturb the program that they train, ours must not.

The table is that of benchmarks/correctness.py, whose checks are run here; the tests after it ask
for the same with more settings, and to the last bit.
"""

from __future__ import annotations

import copy
import importlib
import io
import itertools
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim.lr_scheduler import StepLR
from wrapped_run import is_well

from cgq import CGQ

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
contenders = importlib.import_module("contenders")
correctness = importlib.import_module("correctness")

OURS = [contender for contender in contenders.CONTENDERS if contender.ours]
STEPS = 20

BUFFERED: dict[str, Callable[[], nn.Module]] = {
    "batch_norm": lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4)),
    "batch_norm_plain_mean": lambda: nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4, momentum=None)
    ),
    "instance_norm": lambda: nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    ),
    "spectral_norm_hook": lambda: nn.utils.spectral_norm(nn.Conv1d(2, 4, 3)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Conv1d(2, 4, 3)),
}


def network(first: Callable[[], nn.Module] = BUFFERED["batch_norm"]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(first(), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(24, 1))


def batch_loss(model: Callable[[Tensor], Tensor], number: int, scale: float = 1.0) -> Tensor:
    """The loss of batch `number`, which is always the same batch; a scale of NaN spoils it."""
    draw = torch.Generator().manual_seed(number)
    inputs = torch.randn(16, 2, 8, generator=draw)
    targets = inputs.mean((1, 2)) + 0.1 * torch.randn(16, generator=draw)
    outputs = model(scale * inputs.to(torch.get_default_dtype())).squeeze(1)
    return nn.functional.mse_loss(outputs, targets.to(outputs.dtype))


def step(
    optimizer: CGQ, model: Callable[[Tensor], Tensor], number: int, scale: float = 1.0
) -> None:
    optimizer.step(lambda: batch_loss(model, number, scale))


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def batch_norm(model: nn.Module) -> nn.BatchNorm1d:
    (norm,) = (module for module in model.modules() if isinstance(module, nn.BatchNorm1d))
    return norm


def vector(params: Any) -> Tensor:
    return nn.utils.parameters_to_vector([param.detach() for param in params])


def generators() -> list[Any]:
    of_numpy = numpy.random.get_state(legacy=False)
    return [random.getstate(), str(of_numpy), torch.get_rng_state().tolist()]


@pytest.fixture
def double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("contender", OURS, ids=lambda contender: contender.name)
@pytest.mark.parametrize("column", correctness.CHECKS)
def test_every_mark_of_the_table(contender: Any, column: str) -> None:
    check, mark = correctness.CHECKS[column]
    assert check(contender) == mark


def test_a_rival_that_raises_is_a_cell_and_not_a_crash() -> None:
    lbfgs = next(c for c in contenders.CONTENDERS if c.distribution == "torch")
    assert correctness.observed(correctness.two_groups, lbfgs) == "ValueError"
    missing = contenders.Contender("nobody's", "no-such-optimizer", lbfgs.build, lbfgs.step)
    assert missing.version is None


@pytest.mark.parametrize("is_named", [False, True], ids=["found", "named"])
@pytest.mark.parametrize("kind", BUFFERED)
def test_buffers_and_noise_are_those_of_one_pass_per_step(kind: str, is_named: bool) -> None:
    reference = network(BUFFERED[kind])
    model = network(BUFFERED[kind])
    optimizer = CGQ(model.parameters(), model=model if is_named else None)
    for number in range(STEPS):
        reference.load_state_dict(model.state_dict())
        before, noise = buffers(reference), torch.get_rng_state()
        batch_loss(reference, number)
        expected_noise = torch.get_rng_state()
        assert any(not torch.equal(before[k], b) for k, b in reference.named_buffers())

        torch.set_rng_state(noise)
        step(optimizer, model, number)
        assert optimizer.last_search is not None
        assert optimizer.last_search.evaluations >= 1
        assert torch.equal(torch.get_rng_state(), expected_noise)
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, reference.get_buffer(name)), name
    if kind.startswith("batch_norm"):
        assert batch_norm(model).num_batches_tracked == STEPS


def test_draws_are_the_same_within_a_step_and_fresh_across() -> None:
    random.seed(0)
    numpy.random.seed(0)
    model = network()
    optimizer = CGQ(model.parameters())
    drawn: list[tuple[float, ...]] = []

    def closure() -> Tensor:
        drawn.append((random.random(), numpy.random.rand(), torch.rand(()).item()))
        return batch_loss(model, 0) * (1.0 + 0.1 * sum(drawn[-1]))

    seen: list[tuple[float, ...]] = []
    for _ in range(STEPS):
        start = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        drawn.clear()
        optimizer.step(closure)
        assert len(drawn) >= 2
        assert len(set(drawn)) == 1
        seen.append(drawn[0])
        after = generators()

        random.setstate(start[0])
        numpy.random.set_state(start[1])
        torch.set_rng_state(start[2])
        with torch.no_grad():
            closure()
        assert generators() == after
    for source in zip(*seen, strict=True):  # Python's, NumPy's and torch's, each for itself
        assert len(set(source)) == STEPS


class Wrapped(nn.Module):
    """`nn.Module.compile()` passes over torch's own containers; one of ours is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs


# Inductor's import touches deprecated corners of torch; the global hook that finds modules makes
# torch.compile speak up, which those who pass model= are to be spared.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:.*global hooks:UserWarning")
def test_compiled_model_counts_each_batch_once() -> None:
    model, reference = network(), network()
    compiled: Any = torch.compile(model)
    optimizer = CGQ(model.parameters())
    for number in range(4):
        reference.load_state_dict(model.state_dict())
        batch_loss(reference, number)
        step(optimizer, compiled, number)
        assert optimizer.last_search is not None
        assert optimizer.last_search.evaluations >= 1
        assert batch_norm(model).num_batches_tracked == number + 1
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffer, reference.get_buffer(name))


@pytest.mark.parametrize("way", ["module", "method", "function"])
def test_named_model_is_compiled_twice_whatever_the_way(way: str) -> None:
    """Once with gradient and once without, for the probes; not again at every step."""
    compilations: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        compilations.append(graph)
        return graph.forward

    torch.compiler.reset()
    model = Wrapped()
    optimizer = CGQ(model.parameters(), model=model)
    called: Any = model
    if way == "method":
        model.compile(backend=backend)
    elif way == "module":
        called = torch.compile(model, backend=backend)
    else:
        called = torch.compile(model.forward, backend=backend)
    for number in range(5):
        step(optimizer, called, number)
        assert optimizer.last_search is not None
        assert optimizer.last_search.evaluations >= 1
        assert batch_norm(model).num_batches_tracked == number + 1
    assert len(compilations) == 2


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "options", [{}, {"search_prob": 0.3, "smoothing": 0.5}], ids=["CGQ", "sCGQ"]
)
def test_a_smaller_lr_scales_its_part_of_the_line(options: dict[str, Any]) -> None:
    model = network()
    body, head = list(model[0].parameters()), list(model[4].parameters())
    optimizer = CGQ([{"params": body}, {"params": head, "lr": 0.03}], lr=0.3, **options)
    first, second = optimizer.param_groups
    for number in range(STEPS):
        start = vector(body), vector(head)
        step(optimizer, model, number)
        assert 0.0 < first["step_size"] <= first["lr"] == 0.3
        assert 0.0 < second["step_size"] <= second["lr"] == 0.03
        assert second["step_size"] == pytest.approx(0.1 * first["step_size"], rel=1e-12)
        for group, params, from_ in zip((first, second), (body, head), start, strict=True):
            direction = vector(optimizer.state[param]["direction"] for param in params)
            torch.testing.assert_close(vector(params) - from_, group["step_size"] * direction)


@pytest.mark.usefixtures("double")
def test_splitting_into_equal_groups_changes_nothing() -> None:
    together, apart = network(), network()
    optimizers = [
        CGQ(together.parameters()),
        CGQ([{"params": apart[0].parameters()}, {"params": apart[4].parameters()}]),
    ]
    for number in range(5):
        for model, optimizer in zip((together, apart), optimizers, strict=True):
            torch.manual_seed(number)  # the same dropout masks
            step(optimizer, model, number)
    torch.testing.assert_close(vector(apart.parameters()), vector(together.parameters()))


def test_parameter_without_gradient_waits_for_one() -> None:
    model = network()
    unused, frozen = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = CGQ([unused, *model.parameters(), frozen])
    for number in range(3):
        start = vector(model.parameters())
        step(optimizer, model, number)
        assert (vector(model.parameters()) - start).any()
    assert torch.equal(unused, torch.ones(3))
    assert torch.equal(frozen, torch.ones(3))
    assert unused not in optimizer.state
    assert frozen not in optimizer.state

    optimizer.step(lambda: batch_loss(model, 3) + unused.square().sum())
    assert (unused < 1.0).all()
    assert torch.equal(frozen, torch.ones(3))


@pytest.mark.parametrize("stop", [1, 6, 13])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"search_prob": 0.3, "smoothing": 0.5, "seed": 7},
        {"search_prob": 0.3, "smoothing": 0.5, "max_relative_step": 0.05},
    ],
    ids=["CGQ", "sCGQ", "relative"],
)
def test_resume_is_exact(options: dict[str, Any], stop: int) -> None:
    def run(model: nn.Module, optimizer: CGQ, steps: range) -> list[Any]:
        searches = []
        for number in steps:
            step(optimizer, model, number)
            searches.append(optimizer.last_search)
        return searches

    model = network()
    optimizer = CGQ(model.parameters(), **options)
    run(model, optimizer, range(stop))
    is_well(optimizer)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict(), torch.get_rng_state()), file)
    expected = run(model, optimizer, range(stop, STEPS))

    resumed = network()
    fresh = CGQ(resumed.parameters(), **options)
    file.seek(0)
    saved_model, saved_optimizer, noise = torch.load(file, weights_only=True)
    resumed.load_state_dict(saved_model)
    fresh.load_state_dict(saved_optimizer)
    torch.set_rng_state(noise)
    found = run(resumed, fresh, range(stop, STEPS))

    # The records hold every trial and loss; they also tell which batches were searched.
    assert found == expected
    if "search_prob" in options:
        assert {search is None for search in found} == {False, True}
    for name, value in model.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    assert_same_state(fresh.state_dict(), optimizer.state_dict())


def assert_same_state(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for key, entries in expected["state"].items():
        assert found["state"][key].keys() == entries.keys()
        for name, tensor in entries.items():
            assert torch.equal(found["state"][key][name], tensor), (key, name)


@pytest.mark.parametrize("search_prob", [1.0, 0.0], ids=["searched", "unsearched"])
@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_batch_leaves_no_trace_but_a_count(search_prob: float, before: int, bad: float) -> None:
    random.seed(0)
    numpy.random.seed(0)
    model = network()
    groups = [{"params": model[0].parameters()}, {"params": model[4].parameters(), "lr": 0.1}]
    optimizer = CGQ(groups, search_prob=search_prob)

    def take(number: int, scale: float = 1.0) -> None:
        def closure() -> Tensor:
            jitter = random.random() + numpy.random.rand()
            return batch_loss(model, number, scale * (1.0 + 0.01 * jitter))

        optimizer.step(closure)

    def world() -> tuple[Any, ...]:
        return (
            copy.deepcopy(model.state_dict()),
            copy.deepcopy(optimizer.state_dict()),
            generators(),
        )

    for number in range(before):
        take(number)
    weights, state, noise = world()
    for repetition in (1, 2):
        take(before, scale=bad)
        for group in state["param_groups"]:
            group["skipped"] = repetition
        weights_now, state_now, noise_now = world()
        assert noise_now == noise
        assert_same_state(state_now, state)
        assert weights_now.keys() == weights.keys()
        for name, value in weights.items():
            assert torch.equal(weights_now[name], value), name

    start = vector(model.parameters())
    take(before)
    assert vector(model.parameters()).isfinite().all()
    assert (vector(model.parameters()) - start).any()
    assert [group["skipped"] for group in optimizer.param_groups] == [2, 2]
    assert [group["steps"] for group in optimizer.param_groups] == [before + 1] * 2


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("as_tensor", [False, True], ids=["float", "tensor"])
def test_scheduler_acts_on_the_ceiling_alone(as_tensor: bool) -> None:
    # So low a ceiling that every step ends at it.
    lr = torch.tensor(2.0**-10) if as_tensor else 2.0**-10
    model = network()
    optimizer = CGQ(model.parameters(), lr=lr)
    (group,) = optimizer.param_groups
    scheduler = StepLR(optimizer, step_size=2, gamma=0.5)
    for number in range(6):
        ceiling = 2.0 ** -(10 + number // 2)
        start = vector(model.parameters())
        step(optimizer, model, number)
        assert optimizer.last_search is not None
        assert optimizer.last_search.capped
        assert float(group["lr"]) == ceiling
        assert group["step_size"] == ceiling
        direction = vector(optimizer.state[param]["direction"] for param in group["params"])
        torch.testing.assert_close(vector(model.parameters()) - start, ceiling * direction)
        scheduler.step()


def test_lr_is_never_written() -> None:
    model = network()
    optimizer = CGQ(model.parameters(), lr=0.3)
    (group,) = optimizer.param_groups
    sizes = []
    for number in range(STEPS):
        step(optimizer, model, number)
        sizes.append(group["step_size"])
        assert group["lr"] == 0.3
    # It is not the ceiling that was applied: the rate changes, and can be read.
    assert any(a != b for a, b in itertools.pairwise(sizes))
    assert max(sizes) <= 0.3
