"""torch.compile around the model, the loss and the step."""

from __future__ import annotations

import re
import runpy
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cgq import CGQ
from cgq.hosts.micro_batches import MicroBatches

ROOT = Path(__file__).parents[1]
STEPS = 6
# Inductor writes C++; without a compiler torch's eager kernels stand in for what it would make.
BACKEND = "inductor" if shutil.which("c++") or shutil.which("g++") else "aot_eager"

# Inductor's import touches deprecated corners of torch.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    limit = torch._dynamo.config.recompile_limit
    yield
    torch._dynamo.config.recompile_limit = limit
    torch.compiler.reset()


def network(dropout: float = 0.3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(16, 16),
        nn.BatchNorm1d(16),
        nn.Dropout(dropout / 2),
        nn.Linear(16, 1),
    )


def batch(number: int, size: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(size, 8, generator=generator)
    return inputs, inputs.sin().sum(1, keepdim=True)


def trained(
    call: Callable[[nn.Module], Any] = lambda model: model,
    step: Callable[[CGQ], Any] = lambda optimizer: optimizer.step,
    dropout: float = 0.3,
    **options: Any,
) -> tuple[nn.Module, list[Any]]:
    """A model trained for a few steps when called and stepped as said, and what was searched."""
    model = network(dropout)
    optimizer = CGQ(model.parameters(), model=model, **options)
    called, stepped = call(model), step(optimizer)
    torch.manual_seed(1)
    searches = []
    for number in range(STEPS):
        inputs, targets = batch(number)
        stepped(lambda: nn.functional.mse_loss(called(inputs), targets))
        searches.append(optimizer.last_search)
    return model, searches


def assert_same(model: nn.Module, other: nn.Module, **tolerance: float) -> None:
    for (name, value), reference in zip(
        model.state_dict().items(), other.state_dict().values(), strict=True
    ):
        if tolerance:
            torch.testing.assert_close(value, reference, **tolerance)
        else:
            assert torch.equal(value, reference), name


@pytest.mark.parametrize("backend", sorted({BACKEND, "aot_eager"}))
def test_a_probe_at_the_start_sees_the_compiled_pass_mask_for_mask(backend):
    """The graph with gradient and the one without are two; a step of 1e-30 moves nothing."""
    _, searches = trained(lambda model: torch.compile(model, backend=backend), lr=1e-30)
    for search in searches:
        assert search.trial_losses == (search.loss,)
    assert len({search.loss for search in searches}) == STEPS


def test_a_module_compiled_in_place_is_found():
    model = network(0.0)
    optimizer = CGQ(model.parameters())
    model.compile(backend="aot_eager")
    for number in range(3):
        inputs, targets = batch(number)
        optimizer.step(lambda: nn.functional.mse_loss(model(inputs), targets))
    assert optimizer.last_search.evaluations >= 1
    assert model[4].num_batches_tracked == 3


def test_without_dropout_a_compiled_model_trains_as_the_eager_one():
    eager, searches = trained(dropout=0.0)
    compiled, again = trained(lambda model: torch.compile(model, backend=BACKEND), dropout=0.0)
    assert_same(compiled, eager, rtol=1e-3, atol=1e-4)
    assert [s.evaluations for s in again] == [s.evaluations for s in searches]
    assert [s.accepted for s in again] == [s.accepted for s in searches]


def test_with_eager_masks_a_compiled_model_trains_as_the_eager_one():
    """aot_eager draws as eager dropout does."""
    eager, searches = trained()
    compiled, again = trained(lambda model: torch.compile(model, backend="aot_eager"))
    assert_same(compiled, eager, rtol=1e-3, atol=1e-4)
    assert [s.evaluations for s in again] == [s.evaluations for s in searches]


def test_gone_over_the_recompile_limit_it_is_said_that_masks_differ():
    """The first pass was compiled, the probe is not any more, and eager dropout draws otherwise."""
    if BACKEND != "inductor":
        pytest.skip("other backends draw as eager dropout does")
    torch._dynamo.config.recompile_limit = 1
    with pytest.warns(UserWarning, match="recompile_limit") as caught:
        _, searches = trained(lambda model: torch.compile(model), lr=1e-30)
    assert searches[0].trial_losses[0] != searches[0].loss  # what the warning is about
    assert len([each for each in caught if "drew other random" in str(each.message)]) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("limit", [1, 8])
def test_gone_over_the_limit_it_is_said_of_passes_a_host_has_run(limit):
    if BACKEND != "inductor":
        pytest.skip("other backends draw as eager dropout does")
    torch._dynamo.config.recompile_limit = limit
    model = network()
    optimizer = CGQ(model.parameters(), model=model, lr=1e-30)
    compiled, window = torch.compile(model), MicroBatches[Tensor](model, lambda loss: loss)
    inputs, targets = batch(0)

    def forward() -> Tensor:
        return nn.functional.mse_loss(compiled(inputs), targets)

    window.run(forward, forward).backward()
    with pytest.warns(UserWarning, match="drew other random") if limit == 1 else nullcontext():
        window.step(optimizer.step)
    search = optimizer.last_search
    assert search is not None
    assert (search.trial_losses[0] == search.loss) == (limit > 1)


def test_draws_that_depend_on_the_parameters_are_told_once():
    param = nn.Parameter(torch.ones(2))
    optimizer = CGQ([param])
    first = []

    def closure() -> Tensor:
        torch.rand(1 if first else 2)
        first.append(True)
        return param.square().sum()

    with pytest.warns(UserWarning, match="must draw alike"):
        optimizer.step(closure)
    first.clear()
    optimizer.step(closure)


def test_a_lazy_module_may_draw_its_weights_in_the_first_pass():
    torch.manual_seed(0)
    model = nn.LazyLinear(1)
    optimizer = CGQ(model.parameters())
    inputs, targets = batch(0)
    optimizer.step(lambda: nn.functional.mse_loss(model(inputs), targets))  # a warning is an error
    assert optimizer.last_search is not None


def test_draws_for_the_gradient_alone_are_nobodys_business():
    param = nn.Parameter(torch.ones(2))
    optimizer = CGQ([param])

    def closure(backward: bool) -> Tensor:
        loss = (param + torch.rand(2)).square().sum()
        if backward:
            loss.backward()
            param.grad += 1e-3 * torch.randn(2)
        return loss

    optimizer.step(closure)
    assert optimizer.last_search is not None


def as_method(optimizer: CGQ) -> Any:
    return torch.compile(optimizer.step, backend=BACKEND)


def as_function(optimizer: CGQ) -> Any:
    return torch.compile(lambda closure: optimizer.step(closure), backend=BACKEND)


@pytest.mark.parametrize("wrap", [as_method, as_function])
def test_a_compiled_step_is_the_plain_step(wrap):
    """Eager dropout in the closure stays eager: the step is a break in the graph, whole."""
    plain, searches = trained()
    compiled, again = trained(step=wrap)
    assert_same(compiled, plain)
    assert again == searches


def test_a_compiled_model_stays_compiled_in_a_compiled_step():
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    plain, searches = trained()
    compiled, again = trained(lambda model: torch.compile(model, backend=backend), as_method)
    assert len(graphs) == 2  # with gradient and without
    assert_same(compiled, plain)
    assert again == searches


@pytest.mark.parametrize("wrap", ["method", "function"])
def test_a_full_graph_of_the_step_is_refused_by_name(wrap):
    model = network()
    optimizer = CGQ(model.parameters(), model=model)
    before = [param.detach().clone() for param in model.parameters()]
    inputs, targets = batch(0)
    step: Any = optimizer.step if wrap == "method" else lambda closure: optimizer.step(closure)
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match=r"SearchOptimizer\.step|optimizer\.step"
    ):
        torch.compile(step, fullgraph=True, backend="aot_eager")(
            lambda: nn.functional.mse_loss(model(inputs), targets)
        )
    assert all(map(torch.equal, before, model.parameters()))
    assert optimizer.param_groups[0]["steps"] == 0


def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "with_compile.py"), run_name="__main__")
    accuracy = re.findall(r"test accuracy ([\d.]+)", capsys.readouterr().out)[0]
    assert float(accuracy) > 90
