"""On a GPU: the same run as on the CPU, and no waiting but where a search decides."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from waits import no_waiting
from wrapped_run import is_well

from cgq import CGQ, anytime_average
from ids import option_id

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

OPTIONS: list[dict[str, Any]] = [
    {},
    {"search_prob": 0.3, "smoothing": 0.5},
    {"search_prob": 0.3, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"search_prob": 0.3, "weight_decay": 0.01, "nesterov": True},
    {"search_prob": 0.3, "max_relative_step": 0.01, "lr": 10.0},
    {
        "search_prob": 0.3,
        "max_relative_step": 0.01,
        "lr": 10.0,
        "weight_decay": 0.01,
        "decoupled_weight_decay": True,
    },
]


class Run:
    def __init__(self, device: str, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)
        ).double()
        self.inputs, self.targets = torch.randn(16, 4).double(), torch.randn(16, 1).double()
        self.model.to(device)
        self.inputs, self.targets = self.inputs.to(device), self.targets.to(device)
        first, *others = self.model.parameters()
        lr = options.pop("lr", 0.3)
        groups = [{"params": [first], "lr": lr}, {"params": others, "lr": lr / 2}]
        self.optimizer = CGQ(groups, **options)

    def loss(self) -> Tensor:
        return nn.functional.mse_loss(self.model(self.inputs), self.targets)

    def values(self) -> dict[str, Tensor]:
        return {name: value.cpu().clone() for name, value in self.model.state_dict().items()}


@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
def test_gpu_run_equals_cpu_run(options: dict[str, Any]) -> None:
    cpu, gpu = Run("cpu", **options), Run("cuda", **options)
    for _ in range(10):
        cpu.optimizer.step(cpu.loss)
        gpu.optimizer.step(gpu.loss)
        assert (cpu.optimizer.last_search is None) == (gpu.optimizer.last_search is None)
    torch.testing.assert_close(gpu.values(), cpu.values(), rtol=1e-6, atol=1e-7)
    for mine, other in zip(gpu.optimizer.param_groups, cpu.optimizer.param_groups, strict=True):
        assert float(mine["beta"]) == pytest.approx(other["beta"], abs=1e-6)
        assert float(mine["step_size"]) == pytest.approx(other["step_size"], rel=1e-6)


@pytest.mark.parametrize("search_prob", [0.0, 1e-9])
@pytest.mark.parametrize("options", OPTIONS[1:], ids=option_id)
def test_unsearched_step_never_waits(options: dict[str, Any], search_prob: float) -> None:
    run = Run("cuda", **{**options, "search_prob": search_prob})
    averaged = torch.optim.swa_utils.AveragedModel(run.model, multi_avg_fn=anytime_average())
    for _ in range(3):
        run.optimizer.step(run.loss)
        averaged.update_parameters(run.model)
    is_well(run.optimizer)
    with no_waiting():
        for _ in range(3):
            run.optimizer.step(run.loss)
            run.optimizer.step()
    assert run.optimizer.param_groups[0]["steps"] == 9


def test_a_loss_that_rises_is_heard_of_without_waiting() -> None:
    run = Run("cuda", lr=0.001, search_prob=1e-9, smoothing=0.5)
    for _ in range(10):
        run.optimizer.step(run.loss)
        run.optimizer.param_groups[0]["to_search"] = 0
    weights = [param.detach().clone() for param in run.model.parameters()]
    with no_waiting():
        for _ in range(2):
            run.optimizer.step(lambda: run.loss() + 100.0)
    assert run.optimizer.last_search is None
    assert all(map(torch.equal, run.model.parameters(), weights))  # the device has seen it itself
    run.optimizer.step(run.loss)
    assert run.optimizer.last_search is not None
    group = run.optimizer.param_groups[0]
    assert (group["watched_losses"], group["to_search"]) == (13, 2)


@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
def test_nan_batch_is_left_out_without_waiting(options: dict[str, Any]) -> None:
    run = Run("cuda", **{**options, "search_prob": 0.0})
    for _ in range(3):
        run.optimizer.step(run.loss)
    before = run.values()
    memory = [entry["direction"].clone() for entry in run.optimizer.state.values()]
    with no_waiting():
        run.optimizer.step(lambda: run.loss() * math.nan)
    torch.testing.assert_close(run.values(), before, rtol=0, atol=0)
    for entry, old in zip(run.optimizer.state.values(), memory, strict=True):
        assert torch.equal(entry["direction"], old)
    assert int(run.optimizer.param_groups[0]["skipped"]) == 1


def test_dropout_and_generators_on_the_gpu() -> None:
    torch.manual_seed(0)
    masks: list[Tensor] = []
    model = nn.Sequential(nn.Linear(20, 1), nn.Dropout(0.5)).cuda()
    inputs = torch.randn(64, 20, device="cuda")
    model[1].register_forward_hook(lambda _, args, out: masks.append((out == 0).cpu()))
    optimizer = CGQ(model.parameters())
    for _ in range(3):
        state = torch.cuda.get_rng_state()
        model(inputs)
        ordinary = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state)
        masks.clear()
        optimizer.step(lambda: (model(inputs) - 1).square().mean())
        assert torch.equal(torch.cuda.get_rng_state(), ordinary)
        assert len(masks) > 1
        assert all(torch.equal(masks[0], mask) for mask in masks)


def test_parameters_on_two_devices() -> None:
    runs = []
    for devices in (("cpu", "cpu"), ("cpu", "cuda"), ("cuda", "cpu")):
        torch.manual_seed(0)
        first, second = nn.Linear(4, 8).double(), nn.Linear(8, 1).double()
        inputs, targets = torch.randn(16, 4).double(), torch.randn(16, 1).double()
        first.to(devices[0])
        second.to(devices[1])
        optimizer = CGQ(
            [{"params": first.parameters()}, {"params": second.parameters(), "lr": 0.1}],
            search_prob=0.3,
            weight_decay=0.01,
            decoupled_weight_decay=True,
            nesterov=True,
        )

        def loss() -> Tensor:
            hidden = torch.tanh(first(inputs.to(devices[0])))
            return nn.functional.mse_loss(second(hidden.to(devices[1])), targets.to(devices[1]))

        for _ in range(10):
            optimizer.step(loss)
        runs.append([p.detach().cpu() for m in (first, second) for p in m.parameters()])
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(runs[2], runs[0], rtol=1e-9, atol=1e-11)
