"""CGQ made by timm's factory is the CGQ made by hand.

timm needs torchvision, so most of this runs only where both are: `pip install timm`, then
`pytest tests/test_timm.py`.
"""

from __future__ import annotations

import argparse
import logging
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cgq.timm
from cgq import CGQ, LineSearch

try:
    import timm.optim
    import timm.scheduler
    import timm.utils
except ImportError as error:
    timm: Any = None  # type: ignore[no-redef]
    WHY = f"timm cannot be imported: {error}"
else:
    WHY = ""

needs_timm = pytest.mark.skipif(timm is None, reason=WHY)
ROOT = Path(__file__).parents[1]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).double()


def batches(count: int = 8) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, 12, 4, generator=draw, dtype=torch.float64)
    return list(zip(x, x.sum(2, keepdim=True).sin(), strict=True))


def trained(model: nn.Module, optimizer: Any) -> list[Tensor]:
    for x, y in batches():
        optimizer.step(lambda: nn.functional.mse_loss(model(x), y))
    return [value.clone() for value in model.state_dict().values()]


def test_without_timm_the_error_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm.optim", None)
    with pytest.raises(ImportError, match="pip install timm"):
        cgq.timm.register()


@pytest.fixture
def factory() -> Any:
    cgq.timm.register()
    return timm.optim.create_optimizer_v2


@needs_timm
def test_it_is_registered_once_and_listed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        cgq.timm.register()
        cgq.timm.register()
    assert caplog.records == []
    assert timm.optim.list_optimizers("cgq") == ["cgq"]
    assert timm.optim.get_optimizer_class("cgq") is CGQ


@needs_timm
@pytest.mark.parametrize("options", [{}, {"lr": 0.2, "search_prob": 0.5, "nesterov": True}])
def test_the_factorys_optimizer_equals_one_made_by_hand(
    factory: Any, options: dict[str, Any]
) -> None:
    model, twin = network(), network()
    optimizer = factory(model, "cgq", weight_decay=0.1, **options)
    flat = [param for param in twin.parameters() if param.ndim == 1]
    full = [param for param in twin.parameters() if param.ndim > 1]
    groups = [{"params": flat, "weight_decay": 0.0}, {"params": full, "weight_decay": 0.1}]
    ours, theirs = trained(model, optimizer), trained(twin, CGQ(groups, **options))
    assert all(map(torch.equal, ours, theirs))
    assert optimizer.last_search is not None or options
    assert callable(optimizer.options.momentum)  # not timm's 0.9


@needs_timm
def test_line_search_around_the_factorys_optimizer_equals_one_made_by_hand(factory: Any) -> None:
    model, twin = network(), network()
    optimizer = LineSearch(factory(model, "adamw", lr=0.01, weight_decay=0.0))
    by_hand = LineSearch(torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=0.0))
    assert all(map(torch.equal, trained(model, optimizer), trained(twin, by_hand)))
    assert optimizer.last_search == by_hand.last_search is not None


@needs_timm
def test_the_scripts_arguments_are_taken(factory: Any) -> None:
    args = argparse.Namespace(
        opt="cgq", lr=0.3, weight_decay=0.0, momentum=0.9, opt_eps=1e-8, opt_betas=(0.9, 0.99),
        opt_args={"search_prob": 0.1},
    )  # fmt: skip
    optimizer = timm.optim.create_optimizer(args, network())
    assert isinstance(optimizer, CGQ)
    assert optimizer.options.search_prob == 0.1


@needs_timm
def test_layer_decay_and_timms_schedule_act_on_the_ceiling(factory: Any) -> None:
    model: Any = network()
    model.group_matcher = lambda coarse: {"stem": "^0", "blocks": r"^(\d+)"}
    optimizer = factory(model, "cgq", lr=0.3, layer_decay=0.5)
    scheduler = timm.scheduler.CosineLRScheduler(
        optimizer, t_initial=8, warmup_t=3, warmup_lr_init=0.01, t_in_epochs=False
    )
    for number, (x, y) in enumerate(batches(), 1):  # the scheduler has set the rates by its scales
        optimizer.step(lambda: nn.functional.mse_loss(model(x), y))
        scales = [group["lr_scale"] for group in optimizer.param_groups]
        steps = [group["step_size"] for group in optimizer.param_groups]
        assert [step / max(steps) for step in steps] == pytest.approx(scales)
        assert all(group["step_size"] <= group["lr"] for group in optimizer.param_groups)
        scheduler.step_update(number)
    assert len(set(scales)) == 3


@needs_timm
def test_lookahead_hands_the_closure_on(factory: Any) -> None:
    model = network()
    optimizer = factory(model, "lookahead_cgq")
    trained(model, optimizer)
    assert optimizer._base_optimizer.last_search.accepted


@needs_timm
def test_timms_loss_scaler_drops_the_closure(factory: Any) -> None:
    model, twin = network(), network()
    optimizer, by_hand = factory(model, "cgq"), CGQ(twin.parameters())
    scaler = timm.utils.NativeScaler(device="cpu")
    for x, y in batches():
        optimizer.zero_grad()
        scaler(nn.functional.mse_loss(model(x), y), optimizer)
        by_hand.zero_grad()
        nn.functional.mse_loss(twin(x), y).backward()
        by_hand.step()
        assert optimizer.last_search is None
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@needs_timm
def test_an_unregistered_name_is_timms_error() -> None:
    registry = timm.optim.OptimizerRegistry()
    with pytest.raises(ValueError, match="not found in registry"):
        registry.get_optimizer_info("cgq")


@needs_timm
def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "with_timm.py"), run_name="__main__")
    found = re.search(r"accuracy of the average ([\d.]+)", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) > 0.9
