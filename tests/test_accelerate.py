"""Under Accelerate a loop is, bit for bit, the plain one."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, TensorDataset

from cgq import CGQ, LineSearch

Pair = tuple[Tensor, Tensor]
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _no_accelerator_of_other_tests() -> Iterator[None]:
    forget_accelerators()
    yield
    forget_accelerators()


def forget_accelerators() -> None:
    """Accelerate keeps its settings for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)
    ).double()


def batches() -> DataLoader[Any]:
    x = torch.randn(30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=6)


def loss_on(model: nn.Module, batch: Pair) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def seeded(loader: Iterable[Pair]) -> Iterator[Pair]:
    """Three epochs, each batch with a noise of its own whatever the loaders draw."""
    for number, batch in enumerate(batch for _ in range(3) for batch in loader):
        torch.manual_seed(number)
        yield batch


def windows(size: int) -> Iterator[list[Pair]]:
    """As `seeded`, by the window; one ends with its epoch."""
    window: list[Pair] = []
    for number, batch in enumerate(seeded(batches()), 1):
        window.append((batch[0], batch[1]))
        if len(window) == size or number % 5 == 0:
            yield window
            window = []


def closure_over(
    window: list[Pair],
    model: nn.Module,
    backward_of: Callable[[Tensor], None],
    clip: Callable[..., Tensor] | None,
    size: int,
) -> Callable[[bool], Tensor]:
    scale = torch.tensor(1.0)

    def closure(backward: bool) -> Tensor:
        nonlocal scale
        losses = []
        for batch in window:
            loss = loss_on(model, batch)
            if backward:
                backward_of(loss)
            losses.append(loss.detach() / size)
        if backward and clip is not None:
            scale = torch.clamp(0.3 / (clip(model.parameters(), 0.3) + 1e-6), max=1.0)
        return torch.stack(losses).sum() * scale

    return closure


def assert_same(one: nn.Module, two: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name


def trained_by_hand(size: int = 1, clip: Any = None) -> tuple[nn.Module, CGQ]:
    model = network()
    optimizer = CGQ(model.parameters())
    for window in windows(size):
        backward_of = lambda loss: (loss / size).backward()  # noqa: E731
        optimizer.step(closure_over(window, model, backward_of, clip, size))
    return model, optimizer


def prepared(search_prob: float = 1.0, **settings: Any) -> tuple[Accelerator, nn.Module, Any, Any]:
    accelerator = Accelerator(cpu=True, **settings)
    model = network()
    optimizer = CGQ(model.parameters(), search_prob=search_prob)
    return accelerator, *accelerator.prepare(model, optimizer, batches())


def test_the_plain_loop_is_all_there_is_to_write():
    _, model, optimizer, loader = prepared()
    for batch in seeded(loader):
        optimizer.step(lambda: loss_on(model, batch))
    by_hand, plain = trained_by_hand()
    assert_same(model, by_hand)
    assert optimizer.optimizer.last_search == plain.last_search
    assert model[1].num_batches_tracked == 15


@pytest.mark.parametrize("clips", [False, True])
def test_line_search_equals_the_plain_loop(clips):
    def around_adamw(model: nn.Module) -> LineSearch:
        return LineSearch(torch.optim.AdamW(model.parameters(), lr=0.01), search_prob=0.5)

    accelerator, model, by_hand = Accelerator(cpu=True), network(), network()
    model, optimizer, loader = accelerator.prepare(model, around_adamw(model), batches())
    plain = around_adamw(by_hand)
    for batch in seeded(loader):
        clip = accelerator.clip_grad_norm_ if clips else None
        optimizer.step(closure_over([batch], model, accelerator.backward, clip, 1))
    for batch in seeded(batches()):
        clip = nn.utils.clip_grad_norm_ if clips else None
        plain.step(closure_over([batch], by_hand, lambda loss: loss.backward(), clip, 1))
    assert_same(model, by_hand)
    assert optimizer.optimizer.last_search == plain.last_search is not None


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("size", [2, 5])
def test_accumulation_equals_the_plain_loop(size, clips):
    accelerator, model, optimizer, loader = prepared(gradient_accumulation_steps=size)
    window: list[Pair] = []
    clip = accelerator.clip_grad_norm_ if clips else None
    for batch in seeded(loader):
        with accelerator.accumulate(model):
            window.append(batch)
            if accelerator.sync_gradients:
                optimizer.step(closure_over(window, model, accelerator.backward, clip, size))
                window = []
    by_hand, plain = trained_by_hand(size, nn.utils.clip_grad_norm_ if clips else None)
    assert_same(model, by_hand)
    assert optimizer.param_groups[0]["steps"] == plain.param_groups[0]["steps"] == -(-5 // size) * 3
    assert optimizer.optimizer.last_search == plain.last_search
    assert plain.last_search is not None
    assert plain.last_search.accepted


def test_a_clipped_gradient_is_the_slope_of_the_scaled_loss():
    accelerator, model, optimizer, loader = prepared()
    batch = next(iter(loader))
    model.eval()
    closure = closure_over([batch], model, accelerator.backward, accelerator.clip_grad_norm_, 1)
    start = [param.detach().clone() for param in model.parameters()]
    optimizer.step(closure)
    search = optimizer.optimizer.last_search
    grads = [param.grad for param in model.parameters()]
    with torch.no_grad():
        values = []
        for alpha in (-1e-4, 1e-4):
            for param, value, grad in zip(model.parameters(), start, grads, strict=True):
                param.copy_(value - alpha * grad)
            values.append(closure(False).item())
    assert search.slope == pytest.approx((values[1] - values[0]) / 2e-4, rel=1e-6)


def test_while_accumulating_a_step_is_not_taken():
    accelerator, model, optimizer, loader = prepared(gradient_accumulation_steps=2)
    calls = []
    batch = next(iter(loader))
    with accelerator.accumulate(model):
        optimizer.step(lambda: calls.append(1) or loss_on(model, batch))
    assert (calls, optimizer.param_groups[0]["steps"]) == ([], 0)
    with accelerator.accumulate(model):
        optimizer.step(lambda: calls.append(1) or loss_on(model, batch))
    assert (len(calls) > 1, optimizer.param_groups[0]["steps"]) == (True, 1)


@pytest.mark.filterwarnings("ignore:No step had a closure:UserWarning")
def test_without_a_closure_the_average_step_is_taken():
    accelerator, model, optimizer, loader = prepared()
    for batch in seeded(loader):
        accelerator.backward(loss_on(model, batch))
        optimizer.step()
        assert optimizer.optimizer.last_search is None
        optimizer.zero_grad()
    by_hand = network()
    plain = CGQ(by_hand.parameters())
    for (batch,) in windows(1):
        loss_on(by_hand, batch).backward()
        plain.step()
        plain.zero_grad()
    assert_same(model, by_hand)
    assert optimizer.param_groups[0]["step_size"] == pytest.approx(0.1)  # the first trial, lr/3


def test_fp16_wants_gradients_that_the_closure_has_yet_to_make():
    _, model, optimizer, loader = prepared()
    optimizer = AcceleratedOptimizer(optimizer.optimizer, scaler=torch.amp.GradScaler("cpu"))
    batch = next(iter(loader))
    with pytest.raises(AssertionError, match=r"did not use scaler\.scale\(loss"):
        optimizer.step(lambda: loss_on(model, batch))


@pytest.mark.usefixtures("without_onednn")
def test_bf16_equals_the_plain_loop_under_autocast():
    _, model, optimizer, loader = prepared(mixed_precision="bf16")
    model.float()
    for x, y in seeded(loader):
        optimizer.step(lambda: nn.functional.mse_loss(model(x.float()), y.float()))
    by_hand = network().float()
    plain = CGQ(by_hand.parameters())
    autocast = torch.autocast("cpu", torch.bfloat16)
    for ((x, y),) in windows(1):
        plain.step(lambda: nn.functional.mse_loss(autocast(by_hand)(x.float()).float(), y.float()))
    assert_same(model, by_hand)
    assert plain.last_search is not None


def test_a_prepared_schedule_acts_on_the_ceiling():
    accelerator, model, optimizer, loader = prepared(gradient_accumulation_steps=5)
    schedule = accelerator.prepare(LinearLR(optimizer.optimizer, 0.25, total_iters=3))
    seen, window = [], []
    for batch in seeded(loader):
        with accelerator.accumulate(model):
            window.append(batch)
            if accelerator.sync_gradients:
                optimizer.step(closure_over(window, model, accelerator.backward, None, 5))
                window = []
            seen.append(optimizer.param_groups[0]["lr"])
            schedule.step()
    assert seen[4::5] == pytest.approx([0.075, 0.15, 0.225])
    assert optimizer.param_groups[0]["step_size"] <= 0.225


def test_resuming_equals_continuing(tmp_path):
    accelerator, model, optimizer, loader = prepared(search_prob=0.5)
    for number, batch in enumerate(seeded(loader)):
        if number == 7:
            accelerator.save_state(str(tmp_path))
        optimizer.step(lambda: loss_on(model, batch))
    forget_accelerators()
    accelerator, again, resumed, loader = prepared(search_prob=0.5)
    accelerator.load_state(str(tmp_path))
    for number, batch in enumerate(seeded(loader)):
        if number >= 7:
            resumed.step(lambda: loss_on(again, batch))
    assert_same(model, again)
    assert optimizer.param_groups[0]["average"] == resumed.param_groups[0]["average"] > 0


def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "with_accelerate.py"), run_name="__main__")
    accuracy = re.findall(r"test accuracy ([\d.]+)", capsys.readouterr().out)[0]
    assert float(accuracy) > 90
