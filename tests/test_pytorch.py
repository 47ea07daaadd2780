"""The plain loop with what belongs around a step: each part does what it does elsewhere."""

from __future__ import annotations

import copy
import math
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from cgq import CGQ, anytime_average

ROOT = Path(__file__).parents[1]
mse = nn.functional.mse_loss


def network(*, noisy: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    between = [nn.BatchNorm1d(8), nn.Dropout(0.3)] if noisy else []
    return nn.Sequential(nn.Linear(4, 8), *between, nn.Tanh(), nn.Linear(8, 1)).double()


def batches(count: int, size: int = 12) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, size, 4, generator=draw, dtype=torch.float64)
    return list(zip(x, x.sum(2, keepdim=True).sin() + 0.1, strict=True))


def values(model: nn.Module) -> list[Tensor]:
    return [param.detach().clone() for param in model.parameters()]


@pytest.mark.parametrize("sizes", [[12], [6, 6], [5, 5, 2], [1] * 12], ids=str)
@pytest.mark.parametrize("options", [{}, {"search_prob": 0.5, "weight_decay": 0.1}])
def test_accumulation_equals_the_big_batch(sizes: list[int], options: dict[str, Any]) -> None:
    runs = []
    for parts in ([12], sizes):
        model = network()
        optimizer = CGQ(model.parameters(), **options)
        seen = []
        for x, y in batches(10):

            def closure(backward: bool) -> float:
                total = 0.0
                for part, target in zip(x.split(parts), y.split(parts), strict=True):
                    loss = mse(model(part), target) * len(part) / len(x)
                    if backward:
                        loss.backward()
                    total += loss.item()
                return total

            seen.append(optimizer.step(closure))
            search = optimizer.last_search
            seen += [search.evaluations, search.step_size] if search else [0, 0.0]
        runs.append((seen, values(model)))
    assert runs[0][0] == pytest.approx(runs[1][0], rel=1e-9)
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-9, atol=1e-11)


def test_gradients_accumulated_before_the_step_serve_a_closure_that_measures() -> None:
    ends = []
    for by_hand in (False, True):
        model = network()
        optimizer = CGQ(model.parameters())
        for x, y in batches(6):
            halves = list(zip(x.chunk(2), y.chunk(2), strict=True))
            if by_hand:
                optimizer.zero_grad()
                for part, target in halves:
                    (mse(model(part), target) / 2).backward()
                optimizer.step(lambda: sum(mse(model(a), b).item() / 2 for a, b in halves))
            else:
                optimizer.step(lambda: mse(model(x), y))
            assert optimizer.last_search is not None
        ends.append(values(model))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-10, atol=1e-12)


SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "linear": lambda opt: lr_scheduler.LinearLR(opt, 0.1, total_iters=8),
    "cosine": lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=12),
    "sequential": lambda opt: lr_scheduler.SequentialLR(
        opt,
        [lr_scheduler.LinearLR(opt, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(opt, 8)],
        milestones=[4],
    ),
    "multiplicative": lambda opt: lr_scheduler.MultiplicativeLR(opt, lambda epoch: 0.8),
    "plateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=1),
    "swa": lambda opt: SWALR(opt, swa_lr=0.01, anneal_epochs=5),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedulers_act_on_the_ceiling_and_are_never_fought(name: str) -> None:
    model, plain = network(), network()
    optimizers: list[Optimizer] = [CGQ(model.parameters(), lr=0.4), SGD(plain.parameters(), lr=0.4)]
    schedulers = [SCHEDULES[name](optimizer) for optimizer in optimizers]
    ceilings: list[list[float]] = [[], []]
    steps = []
    plateau = [1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]
    for (x, y), metric in zip(batches(12), plateau, strict=True):
        for optimizer, ceiling in zip(optimizers, ceilings, strict=True):
            ceiling.append(optimizer.param_groups[0]["lr"])
        optimizers[0].step(lambda: mse(model(x), y))
        optimizers[1].step()
        steps.append(optimizers[0].param_groups[0]["step_size"])
        for scheduler in schedulers:
            scheduler.step(metric) if name == "plateau" else scheduler.step()
    assert ceilings[0] == ceilings[1]
    assert len(set(ceilings[0])) > 1
    assert all(0 < step <= ceiling for step, ceiling in zip(steps, ceilings[0], strict=True))
    assert any(step < ceiling for step, ceiling in zip(steps, ceilings[0], strict=True))


def test_a_ceiling_of_zero_moves_nothing() -> None:
    model = network()
    optimizer = CGQ(model.parameters(), lr=0.4)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
    data = batches(4)
    for number, (x, y) in enumerate(data):
        before = values(model)
        optimizer.step(lambda: mse(model(x), y))
        assert all(map(torch.equal, before, values(model))) == (number == 2)
        scheduler.step()


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_group_moves_in_proportion_and_decays_on_its_own(decoupled: bool) -> None:
    model = network()
    optimizer = CGQ(
        [
            {"params": model[0].parameters(), "lr": 0.1},
            {"params": model[2].parameters(), "weight_decay": 0.2},
        ],
        lr=0.4,
        decoupled_weight_decay=decoupled,
    )
    before = values(model)
    x, y = batches(1)[0]
    optimizer.step(lambda: mse(model(x), y))
    first, last = optimizer.param_groups
    assert optimizer.last_search is not None
    alpha = optimizer.last_search.step_size
    assert (first["step_size"], last["step_size"]) == (pytest.approx(alpha / 4), alpha)
    settings = [(0.25, 0.0)] * 2 + [(1.0, 0.2)] * 2
    for param, start, (ratio, decay) in zip(model.parameters(), before, settings, strict=True):
        expected = start - alpha * ratio * (param.grad + decay * start)
        torch.testing.assert_close(param.detach(), expected, rtol=1e-12, atol=1e-14)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5  # what a scheduler does leaves the ratio alone
    optimizer.step(lambda: mse(model(x), y))
    assert first["step_size"] == pytest.approx(last["step_size"] / 4)


def test_frozen_parameters_and_groups_stay() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.0}]
    optimizer = CGQ(groups, lr=0.4)
    before = values(model)
    x, y = batches(1)[0]
    optimizer.step(lambda: mse(model(x), y))
    moved = [not torch.equal(a, b) for a, b in zip(before, values(model), strict=True)]
    assert moved == [False, True, False, False]


@pytest.mark.parametrize(
    ("average", "weight"),
    [
        (anytime_average(eta=8), lambda t: 9.0 / (t + 8.0)),
        (get_ema_multi_avg_fn(0.9), lambda t: 0.1),
    ],
    ids=["anytime", "ema"],
)
def test_averages_are_of_the_points_stepped_to(
    average: Callable[..., None], weight: Callable[[int], float]
) -> None:
    model = network(noisy=True)
    optimizer = CGQ(model.parameters())
    averaged = AveragedModel(model, multi_avg_fn=average)
    data = batches(8)
    mean: list[Tensor] = []
    for number, (x, y) in enumerate(data, 1):
        optimizer.step(lambda: mse(model(x), y))
        averaged.update_parameters(model)
        now = values(model)
        share = weight(number) if mean else 1.0
        mean = [(1 - share) * m + share * v for m, v in zip(mean or now, now, strict=True)]
    torch.testing.assert_close(list(averaged.module.parameters()), mean, rtol=1e-9, atol=1e-12)
    update_bn([x for x, _ in data], averaged)
    hidden = torch.stack([averaged.module[0](x).mean(0) for x, _ in data]).mean(0)
    torch.testing.assert_close(averaged.module[1].running_mean, hidden.detach())
    assert model[1].num_batches_tracked == len(data)


def test_the_best_weights_come_back() -> None:
    model = network()
    optimizer = CGQ(model.parameters())
    train, (x, y) = batches(1, size=4), batches(2)[1]  # too little to learn from for long
    losses, best, weights = [], math.inf, {}
    for _ in range(40):
        for inputs, targets in train:
            optimizer.step(lambda: mse(model(inputs), targets))
        losses.append(mse(model(x), y).item())
        if losses[-1] < best:
            best, weights = losses[-1], copy.deepcopy(model.state_dict())
    assert losses[-1] > best  # or there was nothing to stop for
    model.load_state_dict(weights)
    assert mse(model(x), y).item() == min(losses)


class Run:
    """All that a checkpoint must hold."""

    def __init__(self) -> None:
        self.model = network(noisy=True)
        options: dict[str, Any] = {"search_prob": 0.5, "smoothing": 0.5, "weight_decay": 0.01}
        self.optimizer = CGQ(self.model.parameters(), lr=0.4, **options)
        self.scheduler = SCHEDULES["sequential"](self.optimizer)
        self.plateau = SCHEDULES["plateau"](self.optimizer)
        self.averaged = AveragedModel(self.model, multi_avg_fn=anytime_average(eta=8))

    def train(self, data: list[tuple[Tensor, Tensor]]) -> list[Any]:
        seen = []
        for x, y in data:
            loss = self.optimizer.step(lambda: mse(self.model(x), y))
            self.scheduler.step()
            self.plateau.step(loss.item())
            self.averaged.update_parameters(self.model)
            seen.append((loss.item(), self.optimizer.last_search))
        return seen


def test_resuming_equals_continuing(tmp_path: Path) -> None:
    data = batches(20)
    whole = Run()
    torch.manual_seed(2)
    expected = whole.train(data)

    first = Run()
    torch.manual_seed(2)
    seen = first.train(data[:9])
    state = {name: part.state_dict() for name, part in vars(first).items()}
    torch.save({**state, "generator": torch.get_rng_state()}, tmp_path / "half.pt")
    saved = torch.load(tmp_path / "half.pt", weights_only=True)
    torch.manual_seed(7)
    second = Run()
    for name, part in vars(second).items():
        part.load_state_dict(saved[name])
    torch.set_rng_state(saved["generator"])
    seen += second.train(data[9:])

    assert seen == expected
    assert {search is None for _, search in seen} == {True, False}
    for name in ("model", "averaged"):
        ours, theirs = getattr(second, name).state_dict(), getattr(whole, name).state_dict()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "with_pytorch.py"), run_name="__main__")
    said = capsys.readouterr().out
    found = re.search(r"best weights \(epoch \d+\): ([\d.]+), average: ([\d.]+)", said)
    assert found is not None
    assert min(map(float, found.groups())) > 0.95
    assert "resumed" in said
