"""CGQ under Lightning's Trainer takes the steps of a plain torch loop, to the last bit."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import subprocess
import sys
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cgq

pytest.importorskip("lightning")

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from torchmetrics import MeanMetric

from cgq.lightning import CGQ, LineSearch, StepMonitor

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in (
        ".*treespec, LeafSpec.*:FutureWarning",  # Lightning 2.6 with torch 2.13
        ".*does not have many workers.*",
        "The number of training batches .* is smaller than the logging interval",
        "Checkpoint directory .* exists and is not empty",
    )
]

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "max_epochs": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)
    return nn.Sequential(*layers).double()


def plain_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).double()


def batches(count: int = 12, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, 8, 4, generator=draw, dtype=dtype)
    return list(zip(x, x.sum(2, keepdim=True).sin() + 0.1, strict=True))


class Net(LightningModule):
    def __init__(self, net: nn.Module, make: Callable[[LightningModule], Any] = CGQ) -> None:
        super().__init__()
        self.net, self.make = net, make
        self.calls: list[str] = []

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return self.make(self)


class Feed(list[Any]):
    """Batches as they are: of a mere list Lightning would make many loaders."""


class Seen(Callback):
    """What each optimizer step saw."""

    def __init__(self) -> None:
        self.searches: list[Any] = []

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.searches.append(trainer.optimizers[0].last_search)


def fitted(
    module: Net, data: list[Any] | None = None, **settings: Any
) -> tuple[Trainer, list[Any]]:
    seen = Seen()
    callbacks = [seen, *settings.pop("callbacks", ())]
    trainer = Trainer(**QUIET | settings, callbacks=callbacks)
    torch.manual_seed(2)
    trainer.fit(module, data if isinstance(data, Feed) else Feed(data or batches()))
    return trainer, seen.searches


def looped(
    net: nn.Module,
    data: Any = None,
    *,
    accumulate: int = 1,
    clip: Callable[[Any], Any] = lambda params: None,
    cast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    scale: float = 1.0,
    epochs: int = 1,
    schedule: Callable[[Any], Any] | None = None,
    make: Callable[..., Any] = cgq.CGQ,
    **options: Any,
) -> tuple[Any, list[Any]]:
    """The same in plain torch."""
    optimizer = make(net.parameters(), **options)
    scheduler = schedule(optimizer) if schedule else None
    data = batches() if data is None else data
    seen = []
    torch.manual_seed(2)
    for _ in range(epochs):
        for start in range(0, len(data), accumulate):
            window = data[start : start + accumulate]

            def closure(backward: bool) -> float:
                total = 0.0
                for x, y in window:
                    with cast():
                        loss = nn.functional.mse_loss(net(x), y) / accumulate
                    if backward:
                        (loss * scale).backward()
                    total += loss.item()
                if backward:
                    for param in net.parameters():
                        param.grad /= scale
                    with optimizer.clipping():
                        clip(net.parameters())
                return total

            optimizer.step(closure)
            if scheduler:
                scheduler.step()
            seen += [None] * (len(window) - 1) + [optimizer.last_search]
    return optimizer, seen


def assert_same(a: nn.Module, b: nn.Module) -> None:
    ours, theirs = a.state_dict(), b.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def evaluations(searches: list[Any]) -> int:
    return sum(search.evaluations for search in searches if search)


@pytest.mark.parametrize(
    "options",
    [{}, {"search_prob": 0.4, "smoothing": 0.5}, {"weight_decay": 0.1, "nesterov": True}],
    ids=["defaults", "sCGQ", "decay"],
)
def test_automatic_optimisation_equals_the_loop(options: dict[str, Any]) -> None:
    module, net = Net(network(), lambda module: CGQ(module, **options)), network()
    trainer, searches = fitted(module, max_epochs=2)
    noise = torch.rand(3)
    optimizer, expected = looped(net, epochs=2, **options)
    assert_same(module.net, net)
    assert torch.equal(noise, torch.rand(3))
    assert searches == expected
    assert evaluations(searches) > 5
    ours = trainer.optimizers[0].param_groups[0]
    assert {k: v for k, v in ours.items() if k != "params"} == {
        k: v for k, v in optimizer.param_groups[0].items() if k != "params"
    }


@pytest.mark.parametrize("count", [12, 10], ids=["even", "short last window"])
def test_accumulation_equals_the_loop(count: int) -> None:
    module, net = Net(network()), network()
    trainer, _ = fitted(module, batches(count), accumulate_grad_batches=3, max_epochs=2)
    _, expected = looped(net, batches(count), accumulate=3, epochs=2)
    assert_same(module.net, net)
    assert trainer.global_step == 8
    assert trainer.optimizers[0].last_search == expected[-1]


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.01)


def around_adamw(module: LightningModule) -> LineSearch:
    return LineSearch(module, adamw(module.parameters()), search_prob=0.5)


def plainly_around_adamw(params: Any) -> cgq.LineSearch:
    return cgq.LineSearch(adamw(params), search_prob=0.5)


@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (3, 0.05)])
def test_line_search_equals_the_loop(accumulate: int, clip: float | None) -> None:
    module, net = Net(network(), around_adamw), network()
    settings = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    trainer, searches = fitted(module, callbacks=[StepMonitor()], max_epochs=2, **settings)
    clipped = by_norm if clip else lambda params: None
    options = {"accumulate": accumulate, "clip": clipped, "make": plainly_around_adamw}
    optimizer, expected = looped(net, epochs=2, **options)
    assert_same(module.net, net)
    assert searches[-1] == expected[-1] is not None
    group = trainer.optimizers[0].param_groups[0]
    assert group["losses"] == optimizer.param_groups[0]["losses"] == trainer.global_step
    assert trainer.callback_metrics["cgq/step_size"] == pytest.approx(group["step_size"])
    assert trainer.callback_metrics["cgq/evaluations"] == searches[-1].evaluations
    assert "cgq/momentum" not in trainer.callback_metrics


class Drawing(Feed):
    """Draws from the global generator for every batch, as augmentations do."""

    def __iter__(self) -> Iterator[Any]:
        for x, y in super().__iter__():
            yield x + 0.1 * torch.randn_like(x), y


@pytest.mark.parametrize("accumulate", [1, 3])
def test_probes_see_the_noise_of_the_first_pass(accumulate: int) -> None:
    module = Net(network(), lambda module: CGQ(module, lr=1e-30))  # a probe stays where it is
    _, searches = fitted(module, Drawing(batches()), accumulate_grad_batches=accumulate)
    done = [search for search in searches[accumulate - 1 :: accumulate] if search]
    assert len(done) == 12 // accumulate
    assert all(set(search.trial_losses) == {search.loss} for search in done)


def by_norm(params: Any) -> None:
    nn.utils.clip_grad_norm_(params, 0.05)


def by_value(params: Any) -> None:
    nn.utils.clip_grad_value_(params, 0.05)


class Signed(Net):
    """Clips in a way of its own."""

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        signs(self.parameters())


def signs(params: Any) -> None:
    for param in params:
        param.grad.sign_().mul_(0.05)


CLIPS = [
    (Net, {"gradient_clip_val": 0.05}, by_norm),
    (Net, {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"}, by_value),
    (Signed, {}, signs),
]


@pytest.mark.parametrize(("kind", "settings", "clip"), CLIPS, ids=["norm", "value", "own"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_clipping_equals_the_loop(
    kind: type[Net], settings: dict[str, Any], clip: Callable[[Any], Any], accumulate: int
) -> None:
    module, net = kind(network()), network()
    trainer, _ = fitted(module, accumulate_grad_batches=accumulate, **settings)
    _, expected = looped(net, clip=clip, accumulate=accumulate)
    assert_same(module.net, net)
    assert trainer.optimizers[0].last_search == expected[-1]
    assert "configure_gradient_clipping" not in vars(module)


@pytest.mark.parametrize(("kind", "settings", "clip"), CLIPS, ids=["norm", "value", "own"])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_slope_of_a_clipped_gradient_is_the_derivative_of_the_loss(
    kind: type[Net], settings: dict[str, Any], clip: Callable[[Any], Any], scaled: bool
) -> None:
    if scaled:  # unscales before it clips, and drops the closure
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        settings = {**settings, "plugins": MixedPrecision("16-mixed", "cpu", scaler)}
    smooth = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    module, data = kind(smooth, lambda module: CGQ(module, lr=3.0)), batches(1)
    starts = [param.detach().clone() for param in module.parameters()]
    _, (search,) = fitted(module, data, **settings)
    ends, losses, h = [param.detach().clone() for param in module.parameters()], [], 1e-3
    with torch.no_grad():
        for alpha in (h, -h):
            for param, start, end in zip(module.parameters(), starts, ends, strict=True):
                param.copy_(start + (end - start) * (alpha / search.step_size))
            losses.append(module.loss(data[0]).item())
    slope = (losses[0] - losses[1]) / (2 * h)
    assert slope < 0
    # Under autocast the gradient, not the loss measured here, is of half precision.
    assert search.slope == pytest.approx(slope, rel=1e-2 if scaled else 1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_mixed_precision_equals_the_loop(dtype: torch.dtype, accumulate: int) -> None:
    data, scale = batches(dtype=torch.float32), 1.0
    module, net = Net(network().float()), network().float()
    precision: dict[str, Any] = {"precision": "bf16-mixed"}
    if dtype == torch.float16:  # by name Lightning gives it to a GPU only
        scale = 1024.0
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        precision = {"plugins": MixedPrecision("16-mixed", "cpu", scaler)}
    _, searches = fitted(module, data, accumulate_grad_batches=accumulate, **precision)

    def cast() -> Any:
        return torch.autocast("cpu", dtype)

    _, expected = looped(net, data, accumulate=accumulate, cast=cast, scale=scale)
    assert_same(module.net, net)
    assert evaluations(searches[accumulate - 1 :: accumulate]) == evaluations(expected) > 5


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_noise_is_rejected_as_in_the_loop(accumulate: int) -> None:
    data = batches(20, torch.float32)
    module, net = Net(network().float(), lambda module: CGQ(module, lr=3e-4)), network().float()
    settings = {"precision": "bf16-mixed", "accumulate_grad_batches": accumulate}
    trainer, searches = fitted(module, data, **settings)

    def cast() -> Any:
        return torch.autocast("cpu", torch.bfloat16)

    optimizer, expected = looped(net, data, accumulate=accumulate, cast=cast, lr=3e-4)
    assert_same(module.net, net)
    assert searches[accumulate - 1 :: accumulate] == expected[accumulate - 1 :: accumulate]
    rejected = optimizer.param_groups[0]["rejected_fits"]
    assert trainer.optimizers[0].param_groups[0]["rejected_fits"] == rejected == 20 // accumulate


class Overflowing(Net):
    """Whose third batch is too much for fp16."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch) * (1e37 if batch_idx == 2 else 1.0)


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_step_the_scaler_leaves_out_is_undone_and_counted(clip: float | None) -> None:
    module, data = Overflowing(network().float()), batches(7, torch.float32)
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    trainer, searches = fitted(module, data, plugins=plugin, gradient_clip_val=clip)
    group = trainer.optimizers[0].param_groups[0]
    assert (group["steps"], group["skipped"]) == (6, 1)
    assert module.net[1].num_batches_tracked == 6  # type: ignore[index]
    assert [search is None for search in searches] == [number == 2 for number in range(7)]
    without = Net(network().float())
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    fitted(without, data[:2] + data[3:], plugins=plugin, gradient_clip_val=clip)
    assert_same(module.net, without.net)  # as if the batch had not come


class Choosing(Net):
    """Leaves out every second step by itself."""

    def optimizer_step(self, epoch: Any, batch_idx: int, optimizer: Any, closure: Any) -> None:  # type: ignore[override]
        if batch_idx % 2:
            optimizer.step(closure)
        else:
            closure()


def test_a_step_the_module_leaves_out_is_its_own_business() -> None:
    module = Choosing(network())
    trainer, _ = fitted(module)
    group = trainer.optimizers[0].param_groups[0]
    assert (group["steps"], group["skipped"]) == (6, 0)
    assert module.net[1].num_batches_tracked == 12  # type: ignore[index]


@pytest.mark.filterwarnings("ignore:Swapping scheduler")
def test_the_epoch_for_averaged_statistics_takes_no_step() -> None:
    averaged = StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=2, annealing_epochs=1)
    module = Net(plain_network())
    trainer, _ = fitted(module, max_epochs=4, callbacks=[averaged])
    assert trainer.optimizers[0].param_groups[0]["steps"] == 4 * 12
    # The statistics are the means over the epoch that follows, at the averaged weights.
    with torch.no_grad():
        inner = [module.net[0](x) for x, _ in batches()]  # type: ignore[index]
    expected = torch.stack([each.mean(0) for each in inner]).mean(0)
    torch.testing.assert_close(module.net[1].running_mean, expected)  # type: ignore[index]


def test_a_scaler_that_overflows_leaves_the_step_out() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-32)
    module, data = Net(network().float()), batches(2, torch.float32)
    before = [param.clone() for param in module.parameters()]
    trainer, _ = fitted(module, data[:1], plugins=MixedPrecision("16-mixed", "cpu", scaler))
    optimizer = trainer.optimizers[0]
    assert all(map(torch.equal, module.parameters(), before))
    assert optimizer.batches is None
    trainer, searches = fitted(module, data, plugins=MixedPrecision("16-mixed", "cpu", scaler))
    assert all(searches)
    assert not any(map(torch.equal, module.parameters(), before))


def test_schedulers_act_on_the_ceiling() -> None:
    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, 10)

    def make(module: LightningModule) -> Any:
        optimizer = CGQ(module, lr=0.2)
        return [optimizer], [{"scheduler": schedule(optimizer), "interval": "step"}]

    module, net = Net(network(), make), network()
    _, searches = fitted(module)
    looped(net, schedule=schedule, lr=0.2)
    assert_same(module.net, net)
    assert searches[0].capped
    assert searches[0].step_size == pytest.approx(0.01)


def test_resuming_equals_continuing(tmp_path: Path) -> None:
    def make(module: LightningModule) -> CGQ:
        return CGQ(module, search_prob=0.5, smoothing=0.5)

    # Lightning's checkpoints hold no generators, so nothing may be drawn.
    whole, first, second = (Net(plain_network(), make) for _ in range(3))
    fitted(whole, max_epochs=4)
    trainer, _ = fitted(first, max_epochs=2)
    path = tmp_path / "half.ckpt"
    trainer.save_checkpoint(path)
    assert "optimizer_states" in torch.load(path, weights_only=True)
    trainer = Trainer(**QUIET | {"max_epochs": 4})
    safely = (
        {"weights_only": True}
        if "weights_only" in inspect.signature(trainer.fit).parameters
        else {}
    )
    trainer.fit(second, Feed(batches()), ckpt_path=str(path), **safely)
    assert_same(second.net, whole.net)
    assert trainer.optimizers[0].param_groups[0]["steps"] == 48


class Manual(Net):
    """Every kind of closure that manual optimisation may give."""

    def __init__(self, net: nn.Module, kind: str) -> None:
        super().__init__(net)
        self.automatic_optimization = False
        self.kind = kind

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        optimizer: Any = self.optimizers()

        def with_backward(backward: bool) -> Tensor:
            loss = self.loss(batch)
            self.log("loss", loss)
            if backward:
                self.manual_backward(loss)
            return loss

        def classic() -> Tensor:
            optimizer.zero_grad()
            return with_backward(True)

        def silent() -> None:  # as in Lightning's own examples
            classic()

        def bare() -> None:
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

        steps: dict[str, Callable[[], Any]] = {
            "loss only": lambda: optimizer.step(lambda: self.loss(batch)),
            "with backward": lambda: optimizer.step(with_backward),
            "classic": lambda: optimizer.step(classic),
            "silent": lambda: optimizer.step(silent),
            "bare": bare,
            "torch's own": lambda: self.optimizers(use_pl_optimizer=False).step(
                lambda: self.loss(batch)
            ),
        }
        steps[self.kind]()


@pytest.mark.parametrize("kind", ["loss only", "with backward", "torch's own"])
@pytest.mark.parametrize(
    ("make", "plainly"),
    [(CGQ, cgq.CGQ), (around_adamw, plainly_around_adamw)],
    ids=["CGQ", "LineSearch"],
)
def test_manual_optimisation_equals_the_loop(kind: str, make: Any, plainly: Any) -> None:
    module, net = Manual(network(), kind), network()
    module.make = make
    trainer, searches = fitted(module)
    _, expected = looped(net, make=plainly)
    assert_same(module.net, net)
    assert searches == expected
    assert trainer.global_step == (0 if kind == "torch's own" else 12)


@pytest.mark.filterwarnings("ignore:No step had a closure:UserWarning")
def test_manual_step_without_a_closure_is_not_searched() -> None:
    module, net = Manual(network(), "bare"), network()
    _, searches = fitted(module)
    optimizer = cgq.CGQ(net.parameters())
    torch.manual_seed(2)
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    assert_same(module.net, net)
    assert searches == [None] * 12


def test_manual_optimisation_with_a_scaler_is_searched() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    module = Manual(network().float(), "with backward")
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    _, searches = fitted(module, batches(dtype=torch.float32), plugins=plugin)
    assert all(search.evaluations for search in searches)


@pytest.mark.parametrize("kind", ["classic", "silent"])
def test_a_classic_closure_is_refused(kind: str) -> None:
    with pytest.raises(RuntimeError, match=r"write closure\(backward\)"):
        fitted(Manual(network(), kind))


class Counting(Net):
    """Logs, keeps a metric, and counts what Lightning calls."""

    def __init__(self, net: nn.Module, make: Callable[[LightningModule], Any] = CGQ) -> None:
        super().__init__(net, make)
        self.mean = MeanMetric()
        self.values: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        loss = self.loss(batch)
        self.mean(loss.detach())
        self.log("metric", self.mean, on_step=False, on_epoch=True)
        self.log("mean", loss, on_step=False, on_epoch=True)
        self.log("total", 1.0, on_step=False, on_epoch=True, reduce_fx="sum")
        if torch.is_grad_enabled():
            self.values.append(loss.detach())
        return {"loss": loss}

    def on_before_backward(self, loss: Tensor) -> None:
        self.calls.append("backward")

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.calls.append("zero_grad")

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        assert self.net[0].weight.grad is not None  # type: ignore[index, union-attr]
        self.calls.append("optimizer_step")


def test_probes_leave_logs_metrics_and_hooks_alone() -> None:
    stepped = []

    def make(module: LightningModule) -> CGQ:
        cgq.CGQ(module.parameters())  # torch hooks the step of both classes
        optimizer = CGQ(module)
        optimizer.register_step_post_hook(lambda *args: stepped.append(1))
        return optimizer

    module = Counting(network(), make)
    trainer, searches = fitted(module)
    assert evaluations(searches) > 12
    assert module.calls == ["zero_grad", "backward", "optimizer_step"] * 12
    assert len(stepped) == len(module.values) == 12
    metrics = trainer.callback_metrics
    assert metrics["total"] == 12.0
    expected = torch.stack(module.values).mean().float()
    torch.testing.assert_close(metrics["mean"].float(), expected)
    torch.testing.assert_close(metrics["metric"].float(), expected)
    assert trainer.global_step == 12


def test_what_others_have_patched_stays_patched() -> None:
    module, seen = Counting(network()), []
    log, clip = module.log, module.configure_gradient_clipping

    def their_log(name: str, *args: Any, **kwargs: Any) -> None:
        seen.append("log")
        log(name, *args, **kwargs)

    def their_clipping(*args: Any, **kwargs: Any) -> None:
        seen.append("clip")
        clip(*args, **kwargs)

    module.log = their_log  # type: ignore[method-assign]
    module.configure_gradient_clipping = their_clipping  # type: ignore[method-assign]
    _, searches = fitted(module, gradient_clip_val=0.3)
    assert evaluations(searches) > 12
    assert vars(module)["log"] is their_log
    assert vars(module)["configure_gradient_clipping"] is their_clipping
    assert seen.count("clip") == 12
    assert seen.count("log") == 3 * 12, "none in a probe"
    net = network()
    looped(net, clip=lambda params: nn.utils.clip_grad_norm_(params, 0.3))
    assert_same(module.net, net)


def test_the_monitor_logs_each_step_and_the_capped_share(tmp_path: Path) -> None:
    def make(module: LightningModule) -> CGQ:
        return CGQ(module, lr=0.1, search_prob=0.6)

    module = Net(network(), make)
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    trainer, searches = fitted(
        module,
        callbacks=[StepMonitor()],
        logger=logger,
        log_every_n_steps=1,
        accumulate_grad_batches=2,
    )
    done = searches[1::2]
    found = [search for search in done if search]
    assert 0 < len(found) < len(done) == 6
    capped = sum(search.capped for search in found) / len(found)
    assert trainer.callback_metrics["cgq/capped"] == pytest.approx(capped)
    lines = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    names, rows = lines[0].split(","), [line.split(",") for line in lines[1:]]
    logged = [row[names.index("cgq/evaluations")] for row in rows]
    expected = [float(search.evaluations if search else 0) for search in done]
    assert [float(value) for value in logged if value] == expected
    group = trainer.optimizers[0].param_groups[0]
    assert trainer.callback_metrics["cgq/step_size"] == pytest.approx(group["step_size"])
    assert trainer.callback_metrics["cgq/momentum"] == pytest.approx(group["beta"])


class Dropping(Net):
    """Drops the closure, as a gradient scaler does."""

    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, closure: Any) -> None:  # type: ignore[override]
        closure()
        optimizer.step()


def test_a_dropped_closure_costs_nothing() -> None:
    module, net = Dropping(network()), network()
    _, searches = fitted(module)
    _, expected = looped(net)
    assert_same(module.net, net)
    assert searches == expected


def test_the_plain_optimizer_works_but_says_what_it_costs() -> None:
    module = Counting(network(), lambda module: cgq.CGQ(module.parameters()))
    with pytest.warns(UserWarning, match=r"Lightning's closure .* cgq\.lightning\.CGQ\(self\)"):
        fitted(module)
    assert len(module.calls) > 3 * 12


def test_an_optimizer_made_too_early_is_refused() -> None:
    module = Net(network(), lambda module: module.early)
    module.early = CGQ(module)
    with pytest.raises(RuntimeError, match="Make it in configure_optimizers"):
        fitted(module)


def test_without_a_trainer_it_is_the_plain_optimizer() -> None:
    module, net = Net(network()), network()
    optimizer = module.configure_optimizers()
    torch.manual_seed(2)
    for batch in batches():
        optimizer.step(lambda: module.loss(batch))
    looped(net)
    assert_same(module.net, net)


class Iterating(Net):
    def training_step(self, dataloader_iter: Iterator[Any]) -> Tensor:  # type: ignore[override]
        return self.loss(next(dataloader_iter)[0])


@pytest.mark.filterwarnings("ignore:.*`dataloader_iter`")
def test_a_step_that_draws_its_own_batches_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Let it take the batch"):
        fitted(Iterating(network()))


class Centre(nn.Module):
    """A loss that follows what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))
        self.register_buffer("centre", torch.zeros(1, dtype=torch.float64))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad():
            self.calls += 1
            self.centre.lerp_(outputs.mean(0), 0.1)
        return nn.functional.mse_loss(outputs - self.centre, targets)


class Centred(Net):
    """Its loss is a module, but no part of it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.hidden = [Centre()]

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss: Tensor = self.hidden[0](self.net(batch[0]), batch[1])
        return loss


def test_a_module_in_a_plain_list_is_as_in_the_loop() -> None:
    module, net, centre = Centred(network()), network(), Centre()
    _, searches = fitted(module, batches(8))
    optimizer = cgq.CGQ(net.parameters())
    torch.manual_seed(2)
    for x, y in batches(8):
        optimizer.step(lambda: centre(net(x), y))
    assert module.hidden[0].calls == centre.calls == 8
    assert_same(module.net, net)
    assert_same(module.hidden[0], centre)
    assert evaluations(searches) > 8


class Popping(Net):
    """Takes the labels out of the batch, and leaves its outputs there for a hook."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        labels = batch.pop("labels")
        batch["outputs"] = self.net(batch["x"])
        return nn.functional.mse_loss(batch["outputs"], labels)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.calls.append(",".join(batch))


@pytest.mark.parametrize("kind", [dict, UserDict])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_may_take_entries_out_of_its_batch(kind: Any, accumulate: int) -> None:
    module, net = Popping(network()), network()
    named = [kind(x=x, labels=y) for x, y in batches()]
    _, searches = fitted(module, named, accumulate_grad_batches=accumulate)
    looped(net, accumulate=accumulate)
    assert_same(module.net, net)
    assert evaluations(searches) > 5
    assert module.calls == ["x,outputs"] * 12  # as with any optimizer


class Writing(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        batch[0].sub_(0.5)
        return self.loss(batch)


def test_a_step_that_writes_to_its_batch_is_told_once_to_work_on_a_copy() -> None:
    with pytest.warns(UserWarning, match="Work on a copy") as caught:
        fitted(Writing(network()), batches(3))
    assert sum("Work on a copy" in str(each.message) for each in caught) == 1


def test_other_modules_are_refused() -> None:
    with pytest.raises(TypeError, match=r"write CGQ\(self\)"):
        CGQ(network())  # type: ignore[arg-type]


class Failing(Net):
    """Fails, or gives no loss or a NaN, on the third batch."""

    def __init__(self, net: nn.Module, outcome: Callable[[Tensor], Any]) -> None:
        super().__init__(net)
        self.outcome = outcome

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        if batch_idx == 2:
            self.before = {name: value.clone() for name, value in self.net.state_dict().items()}
        loss = self.loss(batch)
        return self.outcome(loss) if batch_idx == 2 else loss


def test_a_loss_that_is_not_finite_is_skipped_with_its_buffers() -> None:
    module = Failing(network(), lambda loss: loss * torch.nan)
    trainer, searches = fitted(module, batches(3))
    assert trainer.optimizers[0].param_groups[0]["skipped"] == 1
    now = module.net.state_dict()
    assert all(torch.equal(now[name], module.before[name]) for name in now)
    assert searches[2] is None


def test_a_step_left_out_takes_back_all_its_micro_batches() -> None:
    module = Failing(network(), lambda loss: loss * torch.nan)
    trainer, _ = fitted(module, batches(3), accumulate_grad_batches=3)
    assert trainer.optimizers[0].param_groups[0]["skipped"] == 1
    assert_same(module.net, network())


def test_an_error_leaves_parameters_and_buffers() -> None:
    def fail(loss: Tensor) -> None:
        raise ArithmeticError

    module = Failing(network(), fail)
    with pytest.raises(ArithmeticError):
        fitted(module)
    now = module.net.state_dict()
    assert all(torch.equal(now[name], module.before[name]) for name in now)


@pytest.mark.filterwarnings("ignore:.training_step. returned .None.")
def test_no_loss_means_no_step() -> None:
    module = Failing(network(), lambda loss: None)
    trainer, searches = fitted(module)
    assert searches[2] is None
    assert trainer.optimizers[0].param_groups[0]["steps"] == 11


def test_a_trainer_may_go_on_to_another_module() -> None:
    trainer, _ = fitted(Net(network()))
    trainer.callbacks.clear()

    def fitted_anew(make: Callable[[LightningModule], Any]) -> nn.Module:
        module = Net(network(), make)
        trainer.fit_loop.max_epochs += 1  # type: ignore[operator]
        torch.manual_seed(2)
        trainer.fit(module, Feed(batches()))
        return module.net

    again, net = fitted_anew(CGQ), network()
    looped(net)
    assert_same(again, net)
    other, net = fitted_anew(lambda module: torch.optim.SGD(module.parameters(), 0.1)), network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch.manual_seed(2)
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    assert_same(other, net)


def test_groups_of_parameters() -> None:
    def make(module: LightningModule) -> CGQ:
        first, *others = module.parameters()
        return CGQ(module, [{"params": [first], "lr": 0.1}, {"params": others}])

    trainer, _ = fitted(Net(network(), make))
    small, large = trainer.optimizers[0].param_groups
    assert small["step_size"] == pytest.approx(large["step_size"] / 3)


class Adversaries(Net):
    """Two optimizers on one loss, by hand."""

    def __init__(self) -> None:
        super().__init__(network())
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        layers: Any = self.net
        return CGQ(self, layers[0].parameters()), CGQ(self, layers[4].parameters())

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.step(lambda: self.loss(batch))


def test_several_optimizers_by_hand(tmp_path: Path) -> None:
    trainer, _ = fitted(Adversaries(), callbacks=[StepMonitor()])
    assert all(each.last_search.accepted for each in trainer.optimizers)  # type: ignore[attr-defined]
    assert {"cgq/step_size", "cgq-1/step_size"} <= set(trainer.callback_metrics)


DDP = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from lightning.pytorch import LightningModule, Trainer
from cgq.lightning import CGQ

torch.set_num_threads(1)


class Net(LightningModule):
    def __init__(self, manual):
        super().__init__()
        self.automatic_optimization = not manual
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        self.register_buffer("centre", torch.zeros(()))  # of which each rank has its own idea
        self.seen, self.starts = [], {False: set(), True: set()}

    def loss(self, batch):
        self.starts[torch.is_grad_enabled()].add(self.centre.item())
        self.centre += 1 + 100 * self.global_rank
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch, batch_idx):
        if self.automatic_optimization:
            return self.loss(batch)
        self.optimizers().step(lambda: self.loss(batch))

    def on_train_batch_end(self, *args):
        search = self.trainer.optimizers[0].last_search
        self.seen.append(search.evaluations if search else 0)
        assert self.starts[False] <= self.starts[True], "a probe saw what no first pass has seen"

    def configure_optimizers(self):
        return CGQ(self, search_prob=0.7)

    def train_dataloader(self):
        x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1)).double()
        data = TensorDataset(x, x.sum(1, keepdim=True).sin())
        return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))


for name, manual, accumulate in ("automatic", False, 2), ("manual", True, 1):
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", use_distributed_sampler=False, max_epochs=2,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=accumulate,
    )
    module = Net(manual)
    trainer.fit(module)
    result = {"net": module.net.state_dict(), "seen": module.seen}
    torch.save(result, f"{sys.argv[1]}/{name}-{trainer.global_rank}.pt")
"""


def test_two_processes_equal_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DDP)
    run(script, str(tmp_path))
    for name, accumulate in (("automatic", 2), ("manual", 1)):
        one, two = (
            torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True) for rank in (0, 1)
        )
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1)).double()
        both = [(part, part.sum(1, keepdim=True).sin()) for part in x.split(8)]
        _, expected = looped(net, both, accumulate=accumulate, epochs=2, search_prob=0.7)
        stepped = slice(accumulate - 1, None, accumulate)
        assert one["seen"] == two["seen"]
        assert one["seen"][stepped] == [s.evaluations if s else 0 for s in expected[stepped]]
        for key, value in net.state_dict().items():
            assert torch.equal(one["net"][key], two["net"][key])
            torch.testing.assert_close(one["net"][key], value, rtol=0, atol=1e-12)


def run(script: Path, *arguments: str) -> None:
    settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=os.environ | settings,
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=600,  # for what hangs; two processes on busy cores take a minute to start
    )
    assert done.returncode == 0, done.stderr


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "with_lightning.py"), run_name="__main__")
    assert len(re.findall("accuracy", capsys.readouterr().out)) == 4


def test_the_package_alone_does_not_import_lightning() -> None:
    code = "import sys, cgq; sys.exit('lightning' in sys.modules or 'torchmetrics' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
