"""Modules with habits: buffers that appear, grow, or cannot be written; threads; changed dtypes."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import cgq
from cgq import CGQ, Parabola


class Counting(nn.Module):
    """Makes its counter when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "count"):
            self.register_buffer("count", torch.zeros(()))
        self.count += 1
        return self.layer(x)


class Growing(nn.Module):
    """Keeps a buffer that is longer after each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("cache", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        self.cache.resize_(len(self.cache) + 1)
        return self.layer(x)


class Holding(nn.Module):
    """Has a buffer and leaves it alone."""

    def __init__(self, buffer: Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("held", buffer)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.held.to_dense().sum()


def inference_made() -> Tensor:
    with torch.inference_mode():
        return torch.ones(1)


def loss_of(model: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    torch.manual_seed(1)
    inputs, targets = torch.randn(16, 4), torch.randn(16, 1)
    return lambda: nn.functional.mse_loss(model(inputs), targets)


@pytest.mark.parametrize("named", [False, True])
def test_buffer_made_in_a_forward_pass(named: bool) -> None:
    model = Counting()
    optimizer = CGQ(model.parameters(), model=model if named else None)
    loss = loss_of(model)
    failing = [True]

    def closure() -> Tensor:
        value = loss()
        if failing.pop() if failing else False:
            raise ValueError
        return value

    with pytest.raises(ValueError):  # noqa: PT011
        optimizer.step(closure)
    assert not hasattr(model, "count")
    for steps in range(1, 4):
        optimizer.step(loss)
        assert model.count == steps


def test_buffer_that_grows() -> None:
    model = Growing()
    optimizer = CGQ(model.parameters())
    for steps in range(1, 4):
        optimizer.step(loss_of(model))
        assert len(model.cache) == steps


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(1).expand(4),
        inference_made,
        lambda: torch.ones(1 << 17),
        lambda: torch.eye(3).to_sparse(),
    ],
    ids=["expanded", "inference", "long", "sparse"],
)
def test_buffer_that_nobody_writes(make: Callable[[], Tensor]) -> None:
    model = Holding(make())
    held = model.held
    optimizer = CGQ(model.parameters())
    for _ in range(3):
        optimizer.step(loss_of(model))
        assert optimizer.last_search is not None
        assert model.held is held


@pytest.mark.parametrize("named", [False, True])
def test_lazy_modules(named: bool) -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, 1))
    optimizer = CGQ(model.parameters(), model=model if named else None)
    for steps in range(1, 4):
        optimizer.step(loss_of(model))
        assert model[1].num_batches_tracked == steps


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripted_module() -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    scripted = torch.jit.script(plain)
    optimizer = CGQ(scripted.parameters())
    for steps in range(1, 4):
        optimizer.step(loss_of(scripted))
        assert dict(scripted.named_buffers())["1.num_batches_tracked"] == steps


def test_threads_do_not_see_each_others_modules() -> None:
    models = [
        nn.Sequential(nn.Linear(4, 50), nn.BatchNorm1d(50), nn.Linear(50, 1)) for _ in range(2)
    ]
    losses = [loss_of(model) for model in models]
    failures: list[BaseException] = []

    def train(model: nn.Sequential, loss: Callable[[], Tensor]) -> None:
        try:
            optimizer = CGQ(model.parameters())
            for _ in range(50):
                optimizer.step(loss)
        except BaseException as failure:
            failures.append(failure)

    threads = [
        threading.Thread(target=train, args=pair) for pair in zip(models, losses, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [int(model[1].num_batches_tracked) for model in models] == [50, 50]


def test_classic_closure_leaves_other_parameters_gradients() -> None:
    ours, other = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = CGQ(ours.parameters())
    loss = loss_of(lambda x: other(ours(x)))
    expected = torch.autograd.grad(loss(), list(other.parameters()))

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    with pytest.warns(UserWarning, match="pays for a backward"):
        optimizer.step(closure)
    assert optimizer.last_search is not None
    for param, gradient in zip(other.parameters(), expected, strict=True):
        assert param.grad is not None
        assert torch.equal(param.grad, gradient)


def test_memory_follows_a_change_of_dtype() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = CGQ(model.parameters(), momentum=0.5)
    optimizer.step(loss_of(model))
    before = optimizer.state[model.weight]["direction"].double()
    model.double()
    inputs = torch.randn(16, 4).double()
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    assert model.weight.grad is not None
    after = optimizer.state[model.weight]["direction"]
    torch.testing.assert_close(after, 0.5 * before - model.weight.grad, rtol=1e-14, atol=0.0)


def test_numbers_of_numpy_do_not_spoil_a_checkpoint() -> None:
    def fit(loss: float, slope: float, steps: list[float], losses: list[float]) -> Parabola:
        return Parabola(*map(numpy.float64, cgq.two_point(loss, slope, steps, losses)))

    model = nn.Linear(4, 1)
    group = {"params": model.parameters(), "weight_decay": numpy.float32(0.1)}
    optimizer = CGQ([group], lr=numpy.float32(0.3), fit=fit)
    loss = loss_of(model)

    def closure(backward: bool) -> numpy.float32:
        value = loss()
        if backward:
            value.backward()
        return numpy.float32(value.item())

    optimizer.step(closure)
    assert optimizer.last_search is not None
    file = BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["param_groups"][0]
    assert {type(value) for name, value in loaded.items() if name != "params"} == {float, int}


@pytest.mark.parametrize("scale", [1e20, 1e-25])
def test_gradients_whose_squares_leave_float32_still_count(scale: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = CGQ(model.parameters(), lr=float("inf"), max_relative_step=0.01)
    loss = loss_of(model)
    first = loss().item()
    for _ in range(30):
        optimizer.step(lambda: loss() * scale)
    assert optimizer.param_groups[0]["skipped"] == 0
    assert loss().item() < 0.9 * first


def test_record_speaks_of_the_users_loss_when_climbing() -> None:
    param = nn.Parameter(torch.tensor([0.0], dtype=torch.float64))
    optimizer = CGQ([param], maximize=True, momentum=0.0)
    loss = optimizer.step(lambda: 5 - (param - 1).square().sum())
    search = optimizer.last_search
    assert search is not None
    assert search.loss == loss.item() == 4.0
    assert search.slope == pytest.approx(4.0)
    assert search.curvature == pytest.approx(-8.0)
    assert all(value > 4.0 for value in search.trial_losses)


class Replacing(nn.Module):
    """Replaces its buffers in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):  # TorchScript reads no annotation that is a string
        self.count = self.count + 1
        return self.line(x) + 0.01 * self.count


def test_a_script_module_that_replaces_a_buffer_is_probed_without_a_trace() -> None:
    inputs = torch.randn(16, 4)
    losses = []
    for scripted in (False, True):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript itself
            model: Any = torch.jit.script(Replacing()) if scripted else Replacing()
        optimizer = CGQ(model.parameters())
        steps = [
            optimizer.step(lambda model=model: model(inputs).square().mean()) for _ in range(5)
        ]
        losses.append([float(loss) for loss in steps])
        assert model.count == 5
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_gradients_of_the_last_step_do_not_live_through_the_next_pass() -> None:
    model, inputs = nn.Linear(4, 1), torch.randn(8, 4)
    optimizer = CGQ(model.parameters())
    optimizer.step(lambda: model(inputs).square().mean())
    assert model.weight.grad is not None
    old, alive = weakref.ref(model.weight.grad), []

    def closure() -> Tensor:
        alive.append(old() is not None)
        return model(inputs).square().mean()

    optimizer.step(closure)
    assert not any(alive)


class Late(nn.Module):
    """Calls one layer more from some pass on, which it may hold inside, in a list, or make then."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.late = [nn.BatchNorm1d(4)]  # where `modules()` does not find it
        if held == "inside":
            self.norm = self.late[0]
        self.made = held == "made"
        self.is_late = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if self.is_late and self.made and not hasattr(self, "norm"):
            self.norm = self.late[0]
        return nn.functional.dropout(self.late[0](x), 0.5) if self.is_late else x


@pytest.mark.parametrize("held", ["inside", "hidden", "made"])
@pytest.mark.parametrize("search_prob", [1.0, 0.5])
def test_a_layer_that_is_first_called_late_leaves_one_trace_a_step(
    held: str, search_prob: float
) -> None:
    torch.manual_seed(0)
    model = Late(held)
    optimizer = CGQ(model.parameters(), search_prob=search_prob)
    inputs, targets = torch.randn(16, 4), torch.randn(16, 4)
    norm, masks = model.late[0], []

    def closure() -> Tensor:
        outputs = model(inputs)
        masks.append(outputs == 0)
        return nn.functional.mse_loss(outputs, targets)

    for number in range(80):
        model.is_late = number >= 50
        masks.clear()
        optimizer.step(closure)
        assert norm.num_batches_tracked == max(0, number - 49)
        assert all(torch.equal(mask, masks[0]) for mask in masks)
        if number == 60:
            mean = norm.running_mean.clone()
            with pytest.raises(ZeroDivisionError):
                optimizer.step(lambda: closure() * (1 // 0))
            assert norm.num_batches_tracked == 11
            assert torch.equal(norm.running_mean, mean)


def test_no_module_outlives_its_steps() -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1))
    params, alive = list(model.parameters()), weakref.ref(model[1])
    optimizer = CGQ(params)
    loss = loss_of(model)
    for _ in range(3):
        optimizer.step(loss)
    del model, loss
    gc.collect()
    assert alive() is None
