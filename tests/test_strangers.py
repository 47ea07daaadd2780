"""What hurts in other people's training scripts: each case small, but real."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from test_transactions import Run, assert_same, raising
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import binary_cross_entropy, mse_loss

import cgq.rules.scalars
from cgq import CGQ, LineSearch


def test_a_trial_outside_of_a_distribution_s_domain_does_not_end_the_run() -> None:
    """A scale that a trial makes negative is refused by torch.distributions."""
    torch.manual_seed(0)
    data = 3.0 + 0.02 * torch.randn(100)
    mean, scale = nn.Parameter(torch.tensor(2.9)), nn.Parameter(torch.tensor(0.1))
    optimizer = CGQ([mean, scale])

    def likelihood() -> Tensor:  # dynamo switches the check off for a whole process
        return -Normal(mean, scale, validate_args=True).log_prob(data).mean()

    with pytest.warns(UserWarning, match=r"A trial .* raised.*rejected.*ValueError: .*scale"):
        for _ in range(200):
            loss = optimizer.step(likelihood)
    best = -Normal(data.mean(), data.std()).log_prob(data).mean()
    assert loss < best + 0.01


def test_a_trial_that_raises_is_rejected_like_one_that_is_not_finite() -> None:
    raised = Run()
    with pytest.warns(UserWarning, match="ValueError: no digits") as told:
        for _ in range(3):
            raised.step({1: raising(ValueError("no digits"))})
    after = raised.snapshot()
    assert len(told) == 1
    lost = Run()
    for _ in range(3):
        lost.step({1: lambda loss: loss * math.nan})
    assert_same(lost.snapshot(), after)


def regression(*parts: nn.Module) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    inputs = torch.randn(64, 10)
    model = nn.Sequential(*parts) if parts else nn.Linear(10, 1)
    return model, inputs, inputs.sin().sum(1, keepdim=True)


OPTIMIZERS = [CGQ, lambda params: LineSearch(torch.optim.AdamW(params))]


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("backward", [False, True])
def test_a_loss_computed_before_the_step_is_refused(make: Any, backward: bool) -> None:
    model, inputs, targets = regression(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = make(model.parameters())
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    loss = mse_loss(model(inputs), targets)
    if backward:
        loss.backward()
    with pytest.raises(RuntimeError, match=r"computed before .*\n *loss = optimizer\.step\(lambda"):
        optimizer.step(lambda: loss)
    assert_same((model.state_dict(), optimizer.state_dict()), before)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_closure_that_forgets_to_return_is_told_at_once(make: Any) -> None:
    model, inputs, targets = regression()
    optimizer = make(model.parameters())

    def closure() -> None:
        mse_loss(model(inputs), targets)

    with pytest.warns(UserWarning, match="nothing is trained.*return loss"):
        optimizer.step(closure)
    optimizer.step(closure)
    optimizer.step(lambda: mse_loss(model(inputs), targets))
    copy.deepcopy(optimizer).step(closure)  # where a batch was trained, one may be left out


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("value", [Tensor.item, Tensor.detach])
def test_a_number_computed_before_the_step_is_told(make: Any, value: Any) -> None:
    """No tensor tells that it is the same one, but every trial has its loss to the last bit."""
    model, inputs, targets = regression(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = make(model.parameters())
    with pytest.warns(UserWarning, match=r"exactly the same at every trial.*step\(lambda") as told:
        for _ in range(20):
            optimizer.zero_grad()
            loss = mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step(lambda: value(loss))
    assert sum("exactly the same" in str(warning.message) for warning in told) == 1


def test_losses_that_only_rounding_keeps_apart_are_no_reason_to_speak() -> None:
    """At a minimum in float32, where trial after trial changes nothing that it could show."""
    weight = nn.Parameter(torch.linspace(0.5, 2.0, 16))
    optimizer = CGQ([weight])
    for _ in range(300):
        optimizer.step(lambda: 1.0 + weight.square().sum())
    search = optimizer.last_search
    assert search is None or {*search.trial_losses} == {search.loss}


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_frozen_parameters_are_told_at_once(make: Any) -> None:
    model, inputs, targets = regression()
    optimizer = make(model.requires_grad_(False).parameters())
    with pytest.warns(UserWarning, match="No parameter .* requires a gradient"):
        optimizer.step(lambda: mse_loss(model(inputs), targets))


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_loss_in_place_of_a_closure(make: Any) -> None:
    model, inputs, targets = regression()
    with pytest.raises(TypeError, match=r"not Tensor: optimizer\.step\(lambda: "):
        make(model.parameters()).step(mse_loss(model(inputs), targets))


def test_only_the_optimizer_swapped() -> None:
    """The loop of most scripts: zero_grad, backward, step. It is told once, and early."""
    model, inputs, targets = regression()
    optimizer = CGQ(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()

    for _ in range(9):
        step()
    told_so = r"closure that returned a loss.*none was searched.*step\(lambda: "
    with pytest.warns(UserWarning, match=told_so) as told:
        for _ in range(20):
            step()
    assert len(told) == 1
    optimizer = CGQ(model.parameters())
    optimizer.step(lambda: mse_loss(model(inputs), targets))
    for _ in range(20):  # what one search has found is used
        step()


def batches_of(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from zip(inputs.split(8), targets.split(8), strict=True)


def advancing_a_loader() -> tuple[nn.Module, Callable[[], Tensor]]:
    model, inputs, targets = regression()
    batches = batches_of(inputs, targets)

    def closure() -> Tensor:
        x, y = next(batches)
        return mse_loss(model(x), y)

    return model, closure


def drawing_from_its_own_generator() -> tuple[nn.Module, Callable[[], Tensor]]:
    model, inputs, targets = regression()
    generator = torch.Generator().manual_seed(0)

    def closure() -> Tensor:
        noise = torch.randn(inputs.shape, generator=generator)
        return mse_loss(model(inputs + 0.1 * noise), targets)

    return model, closure


def carrying_a_hidden_state() -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model, inputs = nn.RNN(4, 4), torch.randn(1, 3, 4)
    hidden = [torch.zeros(1, 3, 4)]

    def closure() -> Tensor:
        outputs, hidden[0] = model(inputs, hidden[0].detach())
        return mse_loss(outputs, inputs.sin())

    return model, closure


def normalising_in_place() -> tuple[nn.Module, Callable[[], Tensor]]:
    """Each call finds a larger batch, so that no trial descends and none is spared."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    inputs, calls = torch.randn(32, 4), itertools.count(1)
    targets = inputs.sum(1, keepdim=True)

    def closure() -> Tensor:
        return mse_loss(model(inputs) * next(calls), targets)

    return model, closure


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize(
    "script",
    [
        advancing_a_loader,
        drawing_from_its_own_generator,
        carrying_a_hidden_state,
        normalising_in_place,
    ],
)
def test_a_closure_that_does_not_repeat_itself_is_told(make: Any, script: Any) -> None:
    model, closure = script()
    optimizer = make(model.parameters())
    with pytest.warns(UserWarning, match="another loss at the same weights") as told:
        for _ in range(15):
            optimizer.step(closure)
    assert len(told) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_that_does_repeat_itself_is_asked_once(dtype: torch.dtype) -> None:
    """Dropout and BatchNorm are no reason to speak, and the pass more is counted."""
    parts = nn.Linear(10, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 1)
    model, inputs, targets = regression(*parts)
    model, inputs, targets = model.to(dtype), inputs.to(dtype), targets.to(dtype)
    optimizer, unused, passes = CGQ(model.parameters()), 0, [0]

    def closure() -> Tensor:
        passes[0] += 1
        return mse_loss(model(inputs), targets)

    for _ in range(10):
        passes[0] = 0
        optimizer.step(closure)
        search = optimizer.last_search
        assert search is not None
        assert passes[0] == 1 + search.evaluations <= 5
        unused += search.unused
    assert unused == 1


@pytest.mark.parametrize("is_searched", [False, True])
def test_another_optimizer_s_state_is_refused_as_such(is_searched: bool) -> None:
    model, inputs, targets = regression()
    adam: torch.optim.Optimizer = torch.optim.Adam(model.parameters())
    if is_searched:
        adam = cgq.LineSearch(adam)
        adam.step(lambda: mse_loss(model(inputs), targets))
    optimizer = CGQ(model.parameters())
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"another optimizer's state .*betas.*begin anew"):
        optimizer.load_state_dict(adam.state_dict())
    assert_same(optimizer.state_dict(), before)
    optimizer.step(lambda: mse_loss(model(inputs), targets))


def test_a_hook_may_pack_the_state_into_something_else() -> None:
    model, inputs, targets = regression()
    optimizer = CGQ(model.parameters())
    optimizer.register_state_dict_post_hook(lambda _, state: {"version": 2, "optimizer": state})
    optimizer.step(lambda: mse_loss(model(inputs), targets))
    packed = optimizer.state_dict()
    assert packed["version"] == 2
    assert packed["optimizer"]["param_groups"][0]["steps"] == 1


def flat(weight: Tensor) -> Tensor:
    """Its minimum is a step of 50 away along the gradient."""
    return 0.01 * (weight - 10.0).square().sum()


def test_a_ceiling_that_is_the_rate_is_told() -> None:
    weight = nn.Parameter(torch.zeros(3).double())
    optimizer = CGQ([weight], lr=0.01)
    for _ in range(99):
        optimizer.step(lambda: flat(weight))
    assert optimizer.param_groups[0]["capped_share"] > 0.98
    with pytest.warns(UserWarning, match=r"ended at the ceiling lr=0\.01.* to lr=0\.03, ") as told:
        for _ in range(20):
            optimizer.step(lambda: flat(weight))
    assert len(told) == 1
    optimizer = CGQ([weight], lr=100.0)
    for _ in range(120):
        optimizer.step(lambda: flat(weight))
    assert optimizer.param_groups[0]["capped_share"] < 0.1


def annealed(steps: int, of: int) -> tuple[nn.Parameter, CGQ]:
    """A run whose ceiling a schedule lowers."""
    weight = nn.Parameter(torch.zeros(3).double())
    optimizer = CGQ([weight], lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=of)
    for _ in range(steps):
        optimizer.step(lambda: flat(weight))
        scheduler.step()
    return weight, optimizer


def test_a_schedule_that_lowers_the_ceiling_is_no_reason_to_speak() -> None:
    _, optimizer = annealed(steps=150, of=150)
    assert optimizer.param_groups[0]["capped_share"] > 0.98


def test_a_schedule_that_goes_on_from_an_older_state_is_no_reason_to_speak() -> None:
    """Such a state does not hold the first ceiling, but the scheduler's entry."""
    weight, optimizer = annealed(steps=50, of=200)
    older = optimizer.state_dict()
    for group in older["param_groups"]:
        for name in ("first_lr", "capped_share", "searched"):
            del group[name]
    optimizer = CGQ([weight])
    optimizer.load_state_dict(older)
    for _ in range(120):
        optimizer.step(lambda: flat(weight))
    assert optimizer.param_groups[0]["capped_share"] == 1.0


def test_a_rate_written_into_the_groups_is_told() -> None:
    """As scripts do that have a schedule of their own, made for AdamW."""
    weight = nn.Parameter(torch.zeros(3).double())
    optimizer = CGQ([weight])
    with pytest.warns(UserWarning, match=r"ceiling lr=0\.0001.*first value, 0\.3: ") as told:
        for _ in range(50):
            for group in optimizer.param_groups:
                group["lr"] = 1e-4
            optimizer.step(lambda: flat(weight))
    assert len(told) == 1


class Autoencoder(nn.Module):
    """A variational one. Its loss is a sum over batch and pixels, and raises where it is NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 2 * 20))
        self.decoder = nn.Sequential(
            nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        deviation = (0.5 * log_variance).exp()
        decoded = self.decoder(mean + deviation * torch.randn_like(deviation))
        divergence = 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum()
        return binary_cross_entropy(decoded, x, reduction="sum") + divergence


def test_a_loss_that_is_a_sum_gets_a_first_trial_of_its_scale() -> None:
    torch.manual_seed(0)
    model, images = Autoencoder(), torch.rand(128, 784).round()
    optimizer = CGQ(model.parameters())
    for _ in range(10):
        optimizer.step(lambda: model(images))
        search = optimizer.last_search
        assert search is not None
        assert search.trial_steps[0] * -search.slope <= 2.0 * search.loss * (1.0 + 1e-12)
    assert model(images) < 90.0 * 784


def layer_norm_task(seed: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.LayerNorm(50), nn.Linear(50, 1))
    inputs = torch.randn(256, 10)
    targets = inputs.sin().sum(1, keepdim=True)
    return model, lambda: mse_loss(model(inputs), targets)


def recommended(model: nn.Module, **options: Any) -> CGQ:
    """sCGQ as the README has it."""
    params = {"params": list(model.parameters()), **options}
    return CGQ([params], search_prob=0.1, smoothing=0.5)


@pytest.mark.filterwarnings("ignore:Twenty steps|Nearly all:UserWarning")
@pytest.mark.parametrize("seed", range(3))
def test_scgq_is_watched_where_its_average_step_diverges(seed: int) -> None:
    ruined, well = [], []
    for watched, losses in (False, ruined), (True, well):
        model, closure = layer_norm_task(seed)
        optimizer = recommended(model, watched=watched)
        losses += [float(optimizer.step(closure)) for _ in range(150)]
    assert not ruined[-1] < ruined[0]
    assert well[-1] < 0.1 * well[0]


def test_a_run_of_which_no_loss_rises_is_not_searched_more_often() -> None:
    def searches(watched: bool) -> list[int]:
        torch.manual_seed(0)
        model, inputs, targets = regression()
        optimizer, found = recommended(model, watched=watched), []
        for step in range(100):
            optimizer.step(lambda: mse_loss(model(inputs), targets))
            if optimizer.last_search is not None:
                found.append(step)
        return found

    assert searches(True) == searches(False)


def test_an_average_that_proved_too_long_falls_at_once() -> None:
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = CGQ([weight], search_prob=0.5, smoothing=0.5, lr=10.0, momentum=0.0)
    steep = [0.1, 0.1, 0.1, 0.1, 10.0]
    for curvature in steep:
        weight.data.fill_(1.0)
        optimizer.step(lambda: curvature * weight.square().sum())
    search = optimizer.last_search
    assert search is not None  # the loss stood above its level
    assert search.step_size == pytest.approx(0.05)
    assert optimizer.param_groups[0]["average"] == search.step_size


@pytest.mark.parametrize("on_host", [True, False])
def test_a_run_that_a_blind_step_has_ruined_is_told_so(
    on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgq.rules.scalars, "is_host", lambda device: on_host)
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = CGQ([{"params": [weight], "watched": False}], search_prob=1e-9)
    optimizer.step(lambda: 0.1 * weight.square().sum())

    def cliff() -> Tensor:
        return (300.0 * weight.square()).sum().cosh()

    optimizer.step(cliff)  # by the step found where it was flat
    assert not torch.isfinite(cliff())
    if not on_host:  # which looks at nothing that is not searched
        optimizer.param_groups[0]["average"] = 0.0
    for _ in range(19):
        optimizer.step(cliff)
    with pytest.warns(UserWarning, match="load the last checkpoint"):
        optimizer.step(cliff)


def test_batches_that_are_lost_by_themselves_are_no_reason_to_stop() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = CGQ([weight])
    optimizer.step(lambda: weight.square().sum())
    with pytest.warns(UserWarning, match="Twenty steps in a row"):
        for _ in range(30):
            optimizer.step(lambda: weight.square().sum() * math.inf)
    assert optimizer.step(lambda: weight.square().sum()) < 2.0
