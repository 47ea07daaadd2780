"""PyTorch's generic optimizer checks, held against CGQ by torch's own test machinery.

The checks are those of upstream's test_optim.py, written anew.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from rounding import SHADOWS, Rounding
from torch import Tensor, nn
from torch.nn import Parameter, functional
from torch.optim import SGD, lr_scheduler, swa_utils
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.testing import assert_close
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    get_error_inputs_for_all_optims,
    optims,
)
from torch.testing._internal.common_utils import TestCase, parametrize

import cgq.rules.scalars
from cgq import (
    CGQ,
    anytime_average,
    dai_yuan,
    fletcher_reeves,
    hestenes_stiefel,
    least_squares,
    polak_ribiere,
)
from cgq.engine.state import NUMBERS

pytestmark = pytest.mark.filterwarnings("ignore:No step had a closure:UserWarning")

Objective = Callable[[], Tensor]
Way = Callable[[CGQ, Objective], None]
Test = Callable[..., None]


def optim_inputs(device: Any, dtype: Any = None) -> list[OptimizerInput]:
    settings: dict[str, dict[str, Any]] = {
        "default": {},
        "lr": {"lr": 0.05},
        "0-dim tensor lr": {"lr": torch.tensor(0.05, dtype=torch.float64)},
        "1-element tensor lr": {"lr": torch.tensor([0.05], dtype=torch.float64)},
        "weight decay": {"weight_decay": 0.1},
        "decoupled weight decay": {"weight_decay": 0.1, "decoupled_weight_decay": True},
        "heavy ball": {"momentum": 0.9},
        "nesterov": {"nesterov": True},
        "nesterov heavy ball": {"nesterov": True, "momentum": 0.5, "weight_decay": 0.1},
        "maximize": {"maximize": True},
        "maximize, weight decay": {"maximize": True, "weight_decay": 0.1},
        "least squares": {"fit": least_squares},
        "Fletcher-Reeves": {"momentum": fletcher_reeves},
        "Hestenes-Stiefel": {"momentum": hestenes_stiefel},
        "Dai-Yuan": {"momentum": dai_yuan},
        "some searches": {"search_prob": 0.5},
        "smoothing": {"smoothing": 0.5, "search_prob": 0.7},
        "relative step": {"max_relative_step": 0.05},
        "relative step, decay, some searches": {
            "max_relative_step": 0.05,
            "decoupled_weight_decay": True,
            "weight_decay": 0.1,
            "search_prob": 0.5,
        },
    }
    return [OptimizerInput(params=None, kwargs=kw, desc=name) for name, kw in settings.items()]


def error_inputs(device: Any, dtype: Any) -> list[ErrorOptimizerInput]:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"lr": -1e-2}, "Invalid learning rate: -0.01"),
        ({"lr": torch.tensor(-1e-2)}, "Invalid learning rate"),
        ({"lr": math.nan}, "Invalid learning rate: nan"),
        ({"weight_decay": -0.5}, "Invalid weight_decay value: -0.5"),
        ({"momentum": -0.5}, "Invalid momentum value: -0.5"),
        ({"momentum": "polak_ribiere"}, "Invalid momentum value"),
        ({"max_momentum": -0.1}, "Invalid max_momentum value: -0.1"),
        ({"max_relative_step": 0.0}, "Invalid max_relative_step value: 0.0"),
        ({"fit": "two_point"}, "Invalid fit"),
        ({"max_fits": 0}, "Invalid max_fits value: 0"),
        ({"probe": 0.0}, "Invalid probe value: 0.0"),
        ({"search_prob": 1.5}, "Invalid search_prob value: 1.5"),
        ({"smoothing": 1.0}, "Invalid smoothing value: 1.0"),
        ({"seed": 0.5}, "Invalid seed"),
    ]
    sparse = Parameter(torch.zeros(3, device=device, dtype=dtype))
    sparse.grad = torch.ones(3, device=device, dtype=dtype).to_sparse()
    a, b = (Parameter(torch.zeros(1, device=device, dtype=dtype)) for _ in "ab")
    two_voices = [{"params": [a], "nesterov": True}, {"params": [b], "nesterov": False}]
    return [
        *get_error_inputs_for_all_optims(device, dtype),
        *(
            ErrorOptimizerInput(
                OptimizerInput(params=None, kwargs=kw, desc=regex),
                error_type=ValueError,
                error_regex=regex,
            )
            for kw, regex in wrong
        ),
        ErrorOptimizerInput(
            OptimizerInput(params=[{"params": [a], "lr": -1.0}], kwargs={}, desc="a group's lr"),
            error_type=ValueError,
            error_regex="Invalid learning rate: -1.0",
        ),
        ErrorOptimizerInput(
            OptimizerInput(params=two_voices, kwargs={}, desc="one line, two opinions"),
            error_type=ValueError,
            error_regex="nesterov is True in one parameter group and False in another",
        ),
        ErrorOptimizerInput(
            OptimizerInput(params=[sparse], kwargs={}, desc="sparse gradient"),
            error_on=OptimizerErrorEnum.STEP_ERROR,
            error_type=RuntimeError,
            error_regex="A line search does not support sparse gradients",
        ),
    ]


CGQ_INFO = OptimizerInfo(
    CGQ,
    optim_inputs_func=optim_inputs,
    optim_error_inputs_func=error_inputs,
    supported_impls=(),
    scheduler_inputs=(
        [lambda opt: lr_scheduler.StepLR(opt, gamma=0.9, step_size=5)],
        [
            lambda opt: lr_scheduler.LinearLR(opt, start_factor=0.4, total_iters=4),
            lambda opt: lr_scheduler.ExponentialLR(opt, gamma=0.95),
        ],
        [
            lambda opt: lr_scheduler.StepLR(opt, gamma=0.99, step_size=10),
            lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=2),
        ],
    ),
)

# Every scheduler torch has; those that would move a momentum as well are told not to.
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1.0 / (1 + t)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda t: 0.8),
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, milestones=[2, 5]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, factor=0.5, total_iters=3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, start_factor=0.2, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.7),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=8),  # ends at 0
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=3),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=6, power=2.0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.3, step_size_up=3, cycle_momentum=False),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=12, cycle_momentum=False),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.ConstantLR(o, factor=0.1), lr_scheduler.ExponentialLR(o, gamma=0.9)],
        milestones=[3],
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, factor=0.5), lr_scheduler.ExponentialLR(o, gamma=0.9)]
    ),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.05, anneal_epochs=4),
}


@contextlib.contextmanager
def classic_warning_expected() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This closure runs backward", UserWarning)
        yield


def by_loss(optimizer: CGQ, objective: Objective) -> None:
    optimizer.step(objective)


def by_backward(optimizer: CGQ, objective: Objective) -> None:
    def closure(backward: bool) -> Tensor:
        loss = objective()
        if backward:
            optimizer.zero_grad()
            loss.backward()
        return loss

    optimizer.step(closure)


def by_classic(optimizer: CGQ, objective: Objective) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective()
        loss.backward()
        return loss

    with classic_warning_expected():
        optimizer.step(closure)


def by_gradients(optimizer: CGQ, objective: Objective) -> None:
    optimizer.zero_grad()
    objective().backward()
    optimizer.step()


WAYS = by_loss, by_backward, by_classic, by_gradients
every_way = parametrize("way", WAYS, name_fn=lambda way: way.__name__)
searched_or_not = parametrize("way", (by_loss, by_gradients), name_fn=lambda way: way.__name__)


def every_input(
    *leave_out: str, dtypes: Sequence[torch.dtype] = (torch.float64,)
) -> Callable[[Test], Test]:
    """Run a test with every input, less those that set an option left out."""
    names = [
        given.desc
        for given in optim_inputs("cpu")
        if not any(given.kwargs.get(option) for option in leave_out)
    ]

    def decorated(test: Test) -> Test:
        chosen = parametrize("given", names, name_fn=lambda name: re.sub(r"\W+", "_", name))
        return optims([CGQ_INFO], dtypes=dtypes)(chosen(test))

    return decorated


def once(test: Test) -> Test:
    return optims([CGQ_INFO], dtypes=[torch.float64])(test)


def settings(info: OptimizerInfo, device: str, given: str) -> dict[str, Any]:
    """The arguments of the input of that name; a tensor lr is a new one at every call."""
    (kwargs,) = (i.kwargs for i in info.optim_inputs_func(device=device) if i.desc == given)
    return kwargs


class Task:
    """A small regression whose batches change."""

    def __init__(self, device: str, dtype: torch.dtype, *, strided: bool = False) -> None:
        torch.manual_seed(1)
        shape = (4, 3, 2) if strided else (4, 3)
        weight, bias = torch.randn(shape), torch.randn(4, *shape[2:])
        weight, bias, self.inputs, self.target = (
            values.to(device, dtype)
            for values in (weight, bias, torch.randn(8, 6, 3), torch.rand(4))
        )
        if strided:
            weight, bias = weight[..., 0], bias[..., 0]
        self.weight, self.bias = Parameter(weight), Parameter(bias)
        self.batch = 0

    @property
    def params(self) -> list[Parameter]:
        return [self.weight, self.bias]

    def objective(self) -> Tensor:
        return self._loss(self.inputs[self.batch % 8])

    def total(self) -> float:
        """The loss over all batches."""
        with torch.no_grad():
            return self._loss(self.inputs).item()

    def _loss(self, inputs: Tensor) -> Tensor:
        return (torch.tanh(inputs @ self.weight.mT + self.bias) - self.target).square().mean()

    def train(self, optimizer: CGQ, steps: int, way: Way = by_loss) -> None:
        for _ in range(steps):
            way(optimizer, self.objective)
            self.batch += 1


class RunningMean(nn.Module):
    """Puts a new tensor in place of its buffer at every pass."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, inputs: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
        return inputs - self.mean


def network(norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 1))


def numbers(optimizer: CGQ) -> list[dict[str, float]]:
    """What each group shows besides its parameters."""
    return [
        {name: float(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def skipped(optimizer: CGQ) -> int:
    return int(optimizer.param_groups[0]["skipped"])


def saved_and_loaded(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_same(actual: Any, expected: Any) -> None:
    """Equal to the last bit (but for the sign of zero)."""
    assert_close(actual, expected, rtol=0.0, atol=0.0)


def assert_right_way(before: float, after: float, kwargs: dict[str, Any]) -> None:
    assert after > before if kwargs.get("maximize") else after < before


class TestCGQ(TestCase):
    @once
    def test_errors(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        for error in optim_info.optim_error_inputs_func(device=device, dtype=dtype):
            given = error.optimizer_error_input
            with self.subTest(given.desc):
                params = given.params
                if params is None:
                    params = [Parameter(torch.zeros(1, device=device, dtype=dtype))]
                is_warning = issubclass(error.error_type, Warning)
                expected = pytest.warns if is_warning else pytest.raises
                if error.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR:
                    with expected(error.error_type, match=error.error_regex):
                        CGQ(params, **given.kwargs)
                else:
                    optimizer = CGQ(params, **given.kwargs)
                    with expected(error.error_type, match=error.error_regex):
                        optimizer.step()

    @parametrize("strided", [False, True])
    @every_way
    @every_input(dtypes=[torch.float32])
    def test_goes_the_right_way(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way, strided: bool
    ) -> None:
        kwargs = settings(optim_info, device, given)
        task = Task(device, dtype, strided=strided)
        assert task.weight.is_contiguous() is not strided
        before = task.total()
        task.train(CGQ(task.params, **kwargs), 20, way)
        assert_right_way(before, task.total(), kwargs)

    @parametrize("schedule", range(len(CGQ_INFO.scheduler_inputs)))
    @every_way
    @every_input(dtypes=[torch.float32])
    def test_goes_the_right_way_with_schedulers(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way, schedule: int
    ) -> None:
        kwargs = settings(optim_info, device, given)
        task = Task(device, dtype)
        optimizer = CGQ(task.params, **kwargs)
        schedulers = [make(optimizer) for make in optim_info.scheduler_inputs[schedule]]
        before, lr = task.total(), float(optimizer.param_groups[0]["lr"])
        for _ in range(20):
            task.train(optimizer, 1, way)
            for scheduler in schedulers:
                plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
                scheduler.step(*([task.total()] if plateau else []))
        assert float(optimizer.param_groups[0]["lr"]) != lr
        assert_right_way(before, task.total(), kwargs)

    @every_way
    @every_input(dtypes=[torch.float32])
    def test_group_with_vanishing_lr_stays(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way
    ) -> None:
        kwargs = settings(optim_info, device, given)
        task = Task(device, dtype)
        other = Parameter(torch.rand(3, device=device, dtype=dtype) + 1.0)
        still = other.detach().clone()
        # The options come with the first group, and hold for the line through both.
        groups = [{"params": task.params, **kwargs}, {"params": [other], "lr": 1e-28}]
        optimizer = CGQ(groups)
        before = task.total()
        for _ in range(10):
            way(optimizer, lambda: task.objective() + other.sum())
            task.batch += 1
        assert_same(other.detach(), still)
        assert float(other.grad.abs().max()) == 1.0
        assert_right_way(before, task.total(), kwargs)

    @every_input()
    def test_weight_decay_is_per_group(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str
    ) -> None:
        kwargs = settings(optim_info, device, given)
        start = torch.tensor([0.5, -1.0, 2.0], device=device, dtype=dtype)
        plain, decayed = (Parameter(start.clone()) for _ in range(2))
        groups = [
            {"params": [plain], "weight_decay": 0.0},
            {"params": [decayed], "weight_decay": 0.25},
        ]
        optimizer = CGQ(groups, **kwargs)
        optimizer.step(lambda: (plain - 0.1).cosh().sum() + (decayed - 0.1).cosh().sum())
        alpha, beta = (float(optimizer.param_groups[1][name]) for name in ("step_size", "beta"))
        assert alpha > 0.0
        # Nesterov's form takes the gradient, and the decay with it, (1 + β) times.
        nesterov = kwargs.get("nesterov") and not kwargs.get("decoupled_weight_decay")
        share = alpha * 0.25 * (1.0 + beta if nesterov else 1.0)
        assert_close(decayed.detach(), plain.detach() - share * start, rtol=0.0, atol=1e-14)

    @parametrize("shape", [(), (1,)], name_fn=lambda shape: f"{len(shape)}d")
    @every_way
    @every_input("lr")
    def test_tensor_lr_equals_float_lr(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way, shape: Any
    ) -> None:
        kwargs = settings(optim_info, device, given)
        lr = torch.full(shape, 0.2, dtype=torch.float64, device=device)
        ends = []
        for rate in (0.2, lr):
            task = Task(device, dtype)
            optimizer = CGQ(task.params, lr=rate, **kwargs)
            scheduler = lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
            for _ in range(6):
                task.train(optimizer, 1, way)
                scheduler.step()
            ends.append((task.params, numbers(optimizer)))
        assert_same(ends[1], ends[0])
        assert optimizer.param_groups[0]["lr"] is lr
        assert lr.shape == shape

    @every_way
    @every_input(dtypes=[torch.complex128, torch.complex64])
    def test_complex_equals_pairs_of_reals(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way
    ) -> None:
        target = torch.randn(5, 2, device=device, dtype=dtype)
        z = Parameter(torch.ones(5, 2, device=device, dtype=dtype) * (1 - 2j))
        pairs = Parameter(torch.view_as_real(z.detach()).clone())
        whole, halves = (CGQ([p], **settings(optim_info, device, given)) for p in (z, pairs))

        def loss(values: Tensor) -> Tensor:
            return (values**2 - target).abs().square().mean().add(1).log()

        for _ in range(8):
            way(whole, lambda: loss(z))
            way(halves, lambda: loss(torch.view_as_complex(pairs)))
            assert_same(torch.view_as_real(z.detach()), pairs.detach())
        assert_same(whole.state[z], halves.state[pairs])

    @every_way
    @every_input(dtypes=[torch.complex128])
    def test_complex_2d_equals_its_parts(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way
    ) -> None:
        """Rosenbrock's function of |z|, with z whole and with its parts as two parameters."""

        def rosenbrock(z: Tensor) -> Tensor:
            x, y = z.abs().unbind()
            return ((1 - x) ** 2 + 10 * (y - x**2) ** 2) / 100

        z = Parameter(torch.tensor([0.6 + 1.1j, -0.3 + 0.8j], device=device, dtype=dtype))
        re, im = (Parameter(part.detach().clone()) for part in (z.real, z.imag))
        whole, parts = (CGQ(ps, **settings(optim_info, device, given)) for ps in ([z], [re, im]))
        for _ in range(10):
            way(whole, lambda: rosenbrock(z))
            way(parts, lambda: rosenbrock(torch.complex(re, im)))
        # Not to the bit: two dot products are added where the other takes one.
        assert_close(z.detach(), torch.complex(re, im).detach(), rtol=1e-9, atol=1e-9)

    @every_input()
    def test_nothing_happens_without_gradient(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str
    ) -> None:
        frozen = Parameter(torch.randn(2, 3, device=device, dtype=dtype), requires_grad=False)
        idle = Parameter(torch.randn(2, 3, device=device, dtype=dtype))
        for param, closure in (
            (frozen, lambda: torch.tensor([1.0], device=device)),
            (idle, lambda: None),
            (idle, None),
        ):
            optimizer = CGQ([param], **settings(optim_info, device, given))
            before = param.detach().clone(), numbers(optimizer)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*nothing is trained", UserWarning)
                optimizer.step(closure)
            assert_same((param.detach(), numbers(optimizer)), before)
            assert not optimizer.state

    @every_input("weight_decay")
    def test_zero_gradients_move_nothing(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str
    ) -> None:
        param = Parameter(torch.randn(2, 3, device=device, dtype=dtype))
        before = param.detach().clone()
        optimizer = CGQ([param], **settings(optim_info, device, given))
        for closure in (lambda: torch.tensor([1.0], device=device), None):
            param.grad = torch.zeros_like(param)
            optimizer.step(closure)
            assert_same(param.detach(), before)
            assert skipped(optimizer) == 0

    @every_way
    @every_input()
    def test_resumes_from_its_state_dict(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way
    ) -> None:
        kwargs = settings(optim_info, device, given)
        task = Task(device, dtype, strided=True)
        optimizer = CGQ(task.params, **kwargs)
        task.train(optimizer, 5, way)
        saved = saved_and_loaded(optimizer.state_dict())
        assert_same(saved, optimizer.state_dict())
        twin = copy.deepcopy(task)
        resumed = CGQ(twin.params, **{**kwargs, "lr": 123.0})  # the dict knows better
        resumed.load_state_dict(saved)
        assert_same(resumed.state_dict(), saved)
        for each, its in ((task, optimizer), (twin, resumed)):
            each.train(its, 5, way)
        assert_same(twin.params, task.params)
        assert_same(resumed.state_dict(), optimizer.state_dict())
        assert_same(resumed.param_groups[0]["steps"], 10)

    @every_input()
    def test_older_state_dicts_load(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str
    ) -> None:
        task = Task(device, dtype)
        optimizer = CGQ(task.params, **settings(optim_info, device, given))
        task.train(optimizer, 3)
        for missing in ([*NUMBERS], *([name] for name in NUMBERS)):
            old = copy.deepcopy(optimizer.state_dict())
            for group in old["param_groups"]:
                for name in missing:
                    del group[name]
            optimizer.load_state_dict(old)
            for name in missing:
                assert optimizer.param_groups[0][name] == NUMBERS[name]
            before = task.weight.detach().clone()
            task.train(optimizer, 1)
            assert not torch.equal(task.weight, before)

    @searched_or_not
    @every_input()
    def test_numbers_load_as_tensors_and_as_numbers(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way
    ) -> None:
        """What an accelerator keeps as 0-dim tensors may be loaded by a host, and back."""
        task = Task(device, dtype)
        optimizer = CGQ(task.params, **settings(optim_info, device, given))
        task.train(optimizer, 4, way)
        ends = []
        for kept in (float, lambda value: torch.tensor(float(value), dtype=torch.float64)):
            saved = copy.deepcopy(optimizer.state_dict())
            for group in saved["param_groups"]:
                group.update({name: kept(group[name]) for name in ("step_size", "beta")})
                group["skipped"] = int(group["skipped"]) if kept is float else torch.tensor(0)
            twin = copy.deepcopy(task)
            other = CGQ(twin.params, **settings(optim_info, device, given))
            other.load_state_dict(saved)
            twin.train(other, 4, way)
            ends.append((twin.params, numbers(other)))
        assert_same(ends[1], ends[0])

    @every_input()
    def test_state_dict_hooks(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str
    ) -> None:
        task = Task(device, dtype)
        optimizer = CGQ(task.params, **settings(optim_info, device, given))
        task.train(optimizer, 1)
        heard: list[str] = []

        def counted(_: CGQ, state: dict[str, Any]) -> dict[str, Any]:
            return {**state, "entries": len(state["state"])}

        def faster(_: CGQ, state: dict[str, Any]) -> dict[str, Any]:
            assert heard == ["saving", "before"]
            groups = [{**group, "lr": 7.0} for group in state["param_groups"]]
            return {**state, "param_groups": groups}

        optimizer.register_state_dict_pre_hook(lambda _: heard.append("saving"))
        optimizer.register_state_dict_post_hook(counted)
        saved = optimizer.state_dict()
        assert saved["entries"] == 2
        optimizer.register_load_state_dict_pre_hook(faster)
        optimizer.register_load_state_dict_pre_hook(
            lambda _, state: heard.append("before"), prepend=True
        )
        optimizer.register_load_state_dict_post_hook(lambda _: heard.append("last"))
        optimizer.register_load_state_dict_post_hook(lambda _: heard.append("after"), prepend=True)
        optimizer.load_state_dict(saved)
        assert heard == ["saving", "before", "after", "last"]
        assert optimizer.param_groups[0]["lr"] == 7.0
        task.train(optimizer, 1)
        assert optimizer.param_groups[0]["steps"] == 2

    @parametrize("copied", [copy.deepcopy, pickle], name_fn=lambda by: by.__name__)
    @every_input()
    def test_copies_go_on_like_the_original(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, copied: Any
    ) -> None:
        def public(optimizer: CGQ) -> set[str]:
            return {name for name in vars(optimizer) if not name.startswith("_")}

        task = Task(device, dtype)
        optimizer = CGQ(task.params, **settings(optim_info, device, given))
        task.train(optimizer, 3)
        pair = task, optimizer
        twin, other = pickle.loads(pickle.dumps(pair)) if copied is pickle else copied(pair)
        assert public(other) == public(optimizer)
        assert other.options == optimizer.options
        assert other.param_groups[0]["params"][0] is twin.weight
        task.train(optimizer, 4)
        twin.train(other, 4)
        assert_same(twin.params, task.params)
        assert_same(other.state_dict(), optimizer.state_dict())

    @every_way
    @every_input()
    def test_step_hooks_run_once_a_step(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way
    ) -> None:
        task = Task(device, dtype)
        optimizer = CGQ(task.params, **settings(optim_info, device, given))
        heard: list[str] = []

        def noted(what: str) -> Callable[..., None]:
            return lambda *_: heard.append(what)

        handles = [
            optimizer.register_step_pre_hook(noted("before")),
            optimizer.register_step_post_hook(noted("after")),
            register_optimizer_step_pre_hook(noted("before any")),
            register_optimizer_step_post_hook(noted("after any")),
        ]
        task.train(optimizer, 1, way)
        for handle in handles:
            handle.remove()
        task.train(optimizer, 1, way)
        assert heard == ["before any", "before", "after", "after any"]

    @once
    def test_step_pre_hook_may_replace_the_closure(
        self, device: str, dtype: torch.dtype, optim_info: Any
    ) -> None:
        param = Parameter(torch.full((2,), 3.0, device=device, dtype=dtype))
        optimizer = CGQ([param], lr=10.0)
        optimizer.register_step_pre_hook(lambda *_: ((optimizer, lambda: (param**2).sum()), {}))
        optimizer.step(lambda: (param - 7.0).square().sum())
        assert_close(param.detach(), torch.zeros_like(param))

    @every_input("lr")
    def test_prints_its_groups(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str
    ) -> None:
        task = Task(device, dtype)
        groups = [{"params": [p], "lr": 0.125 * p.dim()} for p in task.params]
        optimizer = CGQ(groups, **settings(optim_info, device, given))
        assert repr(optimizer).count("step_size: 0.0\n") == 2
        task.train(optimizer, 1)
        text = repr(optimizer)
        assert text.count("step_size: 0.0\n") == 0
        for part in ("CGQ (", "Parameter Group 1", "lr: 0.25\n", "lr: 0.125\n"):
            assert part in text

    @every_input(dtypes=[torch.float64, torch.bfloat16])
    def test_state_has_the_form_of_its_parameters(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str
    ) -> None:
        kwargs = settings(optim_info, device, given)
        names = {"direction"}
        if callable(kwargs.get("momentum", polak_ribiere)):
            names.add("residual")
        task = Task(device, dtype)
        optimizer = CGQ(task.params, **kwargs)
        task.train(optimizer, 1)
        for param in task.params:
            assert set(optimizer.state[param]) == names
            for value in optimizer.state[param].values():
                assert (value.shape, value.dtype) == (param.shape, param.dtype)
                assert float(value.abs().max()) > 0.0

    @every_input("maximize")
    def test_mixed_dtypes_share_a_line(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str
    ) -> None:
        dtypes = torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64
        params = [Parameter(torch.full((3,), 2.0, device=device, dtype=d)) for d in dtypes]
        optimizer = CGQ(params, **settings(optim_info, device, given))
        for _ in range(5):
            optimizer.step(
                lambda: sum((p.abs().double() - 0.5).square().sum() for p in params) / 4 + 1.0
            )
        values = torch.stack([p.detach().abs().double() for p in params])
        assert float(values.max()) < 2.0 - 1e-2
        # All start alike, so one line keeps them alike, to the coarsest one's rounding.
        assert_close(values, values[1].expand_as(values), rtol=0.05, atol=0.0)
        for param, kind in zip(params, dtypes, strict=True):
            assert param.dtype == kind
            real = torch.empty((), dtype=kind).real.dtype
            assert optimizer.state[param]["direction"].dtype == real

    @parametrize("name", SCHEDULERS)
    @once
    def test_schedulers_move_the_ceiling_as_they_move_sgd(
        self, device: str, dtype: torch.dtype, optim_info: Any, name: str
    ) -> None:
        task, still = Task(device, dtype), Parameter(torch.zeros(1))
        optimizer, sgd = CGQ(task.params, lr=0.3), SGD([still], lr=0.3)
        schedulers = [SCHEDULERS[name](each) for each in (optimizer, sgd)]
        seen = set()
        for step in range(10):
            task.train(optimizer, 1)
            sgd.step()
            lr, found = (optimizer.param_groups[0][key] for key in ("lr", "step_size"))
            assert lr == sgd.param_groups[0]["lr"]
            assert 0.0 <= found <= lr
            seen.add(lr)
            for scheduler in schedulers:
                plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
                scheduler.step(*([1.0 + step] if plateau else []))
        assert len(seen) > 1
        assert skipped(optimizer) == 0

    @once
    def test_no_scheduler_is_left_out(
        self, device: str, dtype: torch.dtype, optim_info: Any
    ) -> None:
        assert {*lr_scheduler.__all__, "SWALR"} - {"LRScheduler"} == {*SCHEDULERS}

    @once
    def test_weight_averaging(self, device: str, dtype: torch.dtype, optim_info: Any) -> None:
        torch.manual_seed(0)
        data = [(torch.randn(6, 3), torch.randn(6, 1)) for _ in range(8)]
        data = [(x.to(device, dtype), y.to(device, dtype)) for x, y in data]
        model = network(nn.BatchNorm1d(4)).to(device, dtype)
        optimizer = CGQ(model.parameters())
        plain = swa_utils.AveragedModel(model)
        recent = swa_utils.AveragedModel(model, multi_avg_fn=anytime_average(eta=2.0))
        scheduler = swa_utils.SWALR(optimizer, swa_lr=0.1, anneal_epochs=3)
        seen: list[Tensor] = []
        for x, y in data:
            optimizer.step(lambda x=x, y=y: functional.mse_loss(model(x), y))
            scheduler.step()
            plain.update_parameters(model)
            recent.update_parameters(model)
            seen.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
        mean = seen[0]
        for t, theta in enumerate(seen[1:], start=2):
            mean = mean + 3.0 / (t + 2.0) * (theta - mean)
        for averaged, expected in ((plain, torch.stack(seen).mean(0)), (recent, mean)):
            actual = nn.utils.parameters_to_vector(averaged.module.parameters()).detach()
            assert_close(actual, expected, rtol=1e-12, atol=1e-12)
        swa_utils.update_bn((x for x, _ in data), recent)
        linear, norm, _ = recent.module
        assert_close(norm.running_mean, torch.cat([linear(x) for x, _ in data]).detach().mean(0))
        assert optimizer.param_groups[0]["lr"] == 0.1

    @every_input()
    def test_named_parameters(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str
    ) -> None:
        tasks = [Task(device, dtype) for _ in range(2)]
        lists = [("weight", tasks[0].weight), ("bias", tasks[0].bias)], tasks[1].params
        named, plain = (CGQ(params, **settings(optim_info, device, given)) for params in lists)

        def train() -> None:
            for task, optimizer in zip(tasks, (named, plain), strict=True):
                task.train(optimizer, 3)
            assert_same(tasks[0].params, tasks[1].params)

        train()
        states = [copy.deepcopy(optimizer.state_dict()) for optimizer in (named, plain)]
        assert states[0]["param_groups"][0]["param_names"] == ["weight", "bias"]
        plain.load_state_dict(states[0])
        named.load_state_dict(states[1])
        train()

    @every_way
    @every_input()
    def test_group_added_while_training(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way
    ) -> None:
        task = Task(device, dtype)
        optimizer = CGQ([task.weight], **settings(optim_info, device, given))
        task.train(optimizer, 2, way)
        old = optimizer.state[task.weight]["direction"].clone()
        optimizer.add_param_group({"params": [task.bias], "weight_decay": 0.25})
        assert_same(optimizer.state[task.weight]["direction"], old)
        start = [param.detach().clone() for param in task.params]
        task.train(optimizer, 1, way)
        # The direction of the weight goes on from the old one, that of the bias begins anew.
        sign = -1.0 if optimizer.options.maximize else 1.0
        previous = old, torch.zeros_like(task.bias)
        for theta, p, param, group in zip(
            start, previous, task.params, optimizer.param_groups, strict=True
        ):
            assert not torch.equal(param, theta)
            decay = 0.0 if optimizer.options.decoupled_weight_decay else group["weight_decay"]
            new = float(group["beta"]) * p - (sign * param.grad + decay * theta)
            assert_close(optimizer.state[param]["direction"], new, rtol=0.0, atol=1e-14)

    @parametrize(
        "rules",
        [(0.9, polak_ribiere), (polak_ribiere, 0.9)],
        name_fn=lambda rules: "to_rule" if callable(rules[1]) else "to_number",
    )
    @once
    def test_group_added_may_change_the_rule_for_all(
        self, device: str, dtype: torch.dtype, optim_info: Any, rules: Any
    ) -> None:
        task = Task(device, dtype)
        optimizer = CGQ(task.params, momentum=rules[0])
        task.train(optimizer, 2)
        late = Parameter(torch.zeros(1, device=device, dtype=dtype))
        optimizer.add_param_group({"params": [late], "momentum": rules[1]})
        start = task.weight.detach().clone()
        task.train(optimizer, 2)  # the late parameter has no gradient yet
        assert not torch.equal(task.weight, start)

    @once
    def test_group_that_is_refused_changes_nothing(
        self, device: str, dtype: torch.dtype, optim_info: Any
    ) -> None:
        task = Task(device, dtype)
        optimizer = CGQ(task.params)
        before = optimizer.options
        with pytest.raises(ValueError, match="more than one parameter group"):
            optimizer.add_param_group({"params": [task.bias], "nesterov": True})
        assert optimizer.options == before
        assert len(optimizer.param_groups) == 1
        late = Parameter(torch.zeros(1, device=device, dtype=dtype))
        optimizer.add_param_group({"params": [late], "nesterov": False})

    @every_way
    @every_input()
    def test_empty_and_scalar_parameters(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way
    ) -> None:
        """Empty parameters and groups take part, and change nothing for a scalar beside them."""
        ends = []
        for shapes in ((), ((0,), (2, 0, 3))):
            scalar = Parameter(torch.tensor(2.0, device=device, dtype=dtype))
            empty = [Parameter(torch.empty(shape, device=device, dtype=dtype)) for shape in shapes]
            groups = [{"params": []}, {"params": [*empty, scalar]}, {"params": []}]
            optimizer = CGQ(groups, **settings(optim_info, device, given))

            def loss(scalar: Tensor = scalar, empty: list[Parameter] = empty) -> Tensor:
                return (scalar - 0.3).cosh() + sum((x**2).sum() for x in empty)

            for _ in range(4):
                way(optimizer, loss)
            ends.append(scalar.detach())
            assert set(optimizer.state) == {scalar, *empty}
            assert optimizer.state[scalar]["direction"].shape == ()
        assert_same(ends[1], ends[0])
        assert float(ends[0]) != 2.0

    @every_way
    @every_input()
    def test_channels_last(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way
    ) -> None:
        torch.manual_seed(0)
        inputs = torch.randn(2, 3, 5, 5, device=device, dtype=dtype)
        plain = nn.Conv2d(3, 4, 2, device=device, dtype=dtype)
        other = copy.deepcopy(plain).to(memory_format=torch.channels_last)
        for model in (plain, other):
            optimizer = CGQ(model.parameters(), **settings(optim_info, device, given))
            for _ in range(5):
                way(optimizer, lambda model=model: model(inputs).tanh().add(1).square().mean())
        assert_close([*other.parameters()], [*plain.parameters()], rtol=0.0, atol=1e-12)
        for tensor in (other.weight, *optimizer.state[other.weight].values()):
            assert tensor.is_contiguous(memory_format=torch.channels_last)
            assert not tensor.is_contiguous()

    @every_input()
    def test_where_gradients_lie_does_not_matter(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str
    ) -> None:
        """Strided parameters with gradients that lie otherwise, overlap or are conjugate views."""
        base = torch.randn(3, 4, 2, device=device, dtype=dtype)
        z = torch.view_as_complex(base)
        strided = [base.clone()[..., 0], base.clone()[0, :, 0], z.clone().mT.contiguous().mT]
        plain = [x.clone(memory_format=torch.contiguous_format) for x in strided]
        grads = [
            torch.randn(4, 3, device=device, dtype=dtype).mT,
            torch.ones((), device=device, dtype=dtype).expand(4),
            torch.randn(3, 4, device=device, dtype=torch.complex128).conj(),
        ]
        ends = []
        for values, contiguous in ((strided, False), (plain, True)):
            params = [Parameter(x) for x in values]
            optimizer = CGQ(params, **settings(optim_info, device, given))
            for step in range(4):
                for param, grad in zip(params, grads, strict=True):
                    scaled = grad if step == 0 else grad * math.cos(step)
                    param.grad = scaled.resolve_conj().clone() if contiguous else scaled
                optimizer.step()
            ends.append(params)
        assert_close(ends[0], ends[1], rtol=0.0, atol=1e-12)
        assert not torch.equal(ends[0][0], base[..., 0])
        # What lies between the strided elements belongs to someone else.
        assert_same(ends[0][0].detach().as_strided((3, 4), (8, 2), 1), base[..., 1])

    @every_input()
    def test_parameter_shared_by_two_modules(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str
    ) -> None:
        torch.manual_seed(0)
        inputs = torch.randn(7, 3, device=device, dtype=dtype)
        tied = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in "ab")).to(device, dtype)
        tied[1].weight = tied[0].weight
        alone = Parameter(tied[0].weight.detach().clone())
        both, one = (
            CGQ(params, **settings(optim_info, device, given))
            for params in (tied.parameters(), [alone])
        )
        for _ in range(5):
            both.step(lambda: (tied(inputs) - 1.0).square().mean())
            one.step(lambda: (functional.linear(inputs @ alone.mT, alone) - 1.0).square().mean())
        assert_same(tied[0].weight.detach(), alone.detach())
        assert tied[1].weight is tied[0].weight

    @once
    def test_classic_closure_is_told_where_it_was_called(
        self, device: str, dtype: torch.dtype, optim_info: Any
    ) -> None:
        task = Task(device, dtype)
        optimizer = CGQ(task.params)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = task.objective()
            loss.backward()
            return loss

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step(closure)
            optimizer.step(closure)
        assert [str(warning.message)[:26] for warning in caught] == ["This closure runs backward"]
        assert caught[0].filename == __file__

    @every_input()
    def test_gradients_in_lasting_memory(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str
    ) -> None:
        """A classic closure may write each gradient to the same place, as DDP's bucket views do."""
        task, twin = Task(device, dtype), Task(device, dtype)
        places = [torch.zeros_like(param) for param in twin.params]
        optimizers = [CGQ(t.params, **settings(optim_info, device, given)) for t in (task, twin)]

        def closure() -> Tensor:
            loss = twin.objective()
            grads = torch.autograd.grad(loss, twin.params)
            for param, place, grad in zip(twin.params, places, grads, strict=True):
                param.grad = place.copy_(grad)
            return loss.detach()

        for _ in range(4):
            task.train(optimizers[0], 1, by_classic)
            with classic_warning_expected():
                optimizers[1].step(closure)
            twin.batch += 1
            assert_same([p.grad for p in twin.params], [p.grad for p in task.params])
            assert_same(twin.params, task.params)


class TestAccelerated(TestCase):
    """The accelerator's path, on the host: gathered buffers, decisions the host does not see."""

    @every_way
    @every_input()
    def test_follows_the_path_of_the_host(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, way: Way
    ) -> None:
        batches = torch.randn(30, 6, dtype=dtype)

        rounding = Rounding()

        def trajectory(off: Callable[[Tensor], Tensor] = lambda x: x) -> list[Tensor]:
            generator = torch.Generator().manual_seed(0)
            shapes = (), (0,), (3,), (2, 3), (2, 3, 2, 2)
            values = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
            values[3] = torch.stack([values[3], values[3]], dim=-1)[..., 0]
            values[4] = values[4].contiguous(memory_format=torch.channels_last)
            params = [Parameter(x) for x in (*values, torch.complex(values[2], 1.0 - values[2]))]
            groups = [  # unwatched: a device hears of a loss later than a host
                {"params": params[::2], "watched": False},
                {"params": params[1::2], "lr": 0.1, "weight_decay": 0.02},
            ]
            optimizer = CGQ(groups, **settings(optim_info, device, given))
            points = []
            for batch in batches:

                def loss(batch: Tensor = batch) -> Tensor:
                    reals = [p.abs() if p.is_complex() else p for p in params]
                    pairs = zip(reals, batch, strict=True)
                    terms = [(x - at).tanh().square().sum() for x, at in pairs]
                    return off(torch.stack(terms).sum() + 0.1)

                way(optimizer, loss)
                for p in params:
                    p.data.copy_(off(p.data))
                flat = [torch.view_as_real(p) if p.is_complex() else p for p in params]
                points.append(torch.cat([x.detach().reshape(-1) for x in flat]))
            return points

        host = trajectory()
        with mock.patch.object(cgq.rules.scalars, "is_host", return_value=False):
            gathered = trajectory()
        shadows = [trajectory(rounding.off) for _ in range(SHADOWS)]
        for found, expected, *blurred in zip(gathered, host, *shadows, strict=True):
            rounding.check("theta", found, expected, blurred)

    @parametrize("norm", [nn.BatchNorm1d, RunningMean], name_fn=lambda norm: norm.__name__)
    @parametrize("host", [False, True])
    @parametrize("search_prob", [0.0, 1.0])
    @every_input()
    def test_nan_batch_leaves_no_trace_and_is_counted(
        self, device: str, dtype: torch.dtype, optim_info: Any, given: str, **case: Any
    ) -> None:
        norm = nn.BatchNorm1d(4) if case["norm"] is nn.BatchNorm1d else RunningMean()
        inputs, targets = torch.randn(8, 3, dtype=dtype), torch.randn(8, 1, dtype=dtype)
        model = network(norm).to(dtype)
        kwargs = settings(optim_info, device, given)
        optimizer = CGQ(model.parameters(), **{**kwargs, "search_prob": case["search_prob"]})

        def step(inputs: Tensor) -> None:
            with mock.patch.object(cgq.rules.scalars, "is_host", return_value=case["host"]):
                optimizer.step(lambda: functional.mse_loss(model(inputs), targets))

        def everything() -> dict[str, Any]:
            memory, averages = optimizer.state_dict()["state"], optimizer.param_groups[0]["average"]
            return copy.deepcopy({"model": model.state_dict(), "memory": memory, "at": averages})

        for _ in range(3):
            step(inputs)
        before = everything()
        for count in (1, 2):
            step(inputs * math.nan)
            assert_same(everything(), before)
            assert skipped(optimizer) == count
        step(inputs)
        assert skipped(optimizer) == 2
        weight = "0.weight"
        assert not torch.equal(everything()["model"][weight], before["model"][weight])


instantiate_device_type_tests(TestCGQ, globals(), only_for=("cpu",))
instantiate_device_type_tests(TestAccelerated, globals(), only_for=("cpu",))
