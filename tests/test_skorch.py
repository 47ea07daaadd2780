"""CGQ under skorch takes the steps of a plain torch loop, to the last bit."""

from __future__ import annotations

import pickle
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cgq import CGQ, LineSearch

pytest.importorskip("skorch")

from sklearn.base import clone
from skorch import NeuralNet, NeuralNetRegressor
from skorch.callbacks import Callback, GradientNormClipping, LRScheduler

from cgq.skorch import CGQNet

ROOT = Path(__file__).parents[1]
EPOCHS = 3


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1)
        self.layers = nn.Sequential(*layers).double()
        self.passes = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        outputs: Tensor = self.layers(inputs)
        return outputs


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 4, generator=draw, dtype=torch.float64)
    return inputs, inputs.sum(1, keepdim=True).sin()


def batches() -> Any:
    return DataLoader(TensorDataset(*data()), batch_size=8)  # draws a seed, as skorch's does


class Calls(Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.notified = 0
        self.searches: list[Any] = []

    def on_grad_computed(self, net: Any, **kwargs: Any) -> None:
        self.notified += 1

    def on_batch_end(self, net: Any, training: bool = False, **kwargs: Any) -> None:
        self.searches.append(net.optimizer_.last_search)


def made(kind: Any = CGQNet, **settings: Any) -> Any:
    given: dict[str, Any] = {
        "criterion": nn.MSELoss,
        "optimizer": CGQ,
        "lr": 0.3,
        "max_epochs": EPOCHS,
        "batch_size": 8,
        "train_split": None,
        "verbose": 0,
    }
    return kind(Module, **given | settings)


def fitted(net: Any) -> Any:
    net.initialize()
    torch.manual_seed(2)
    return net.partial_fit(*data())


def looped(
    clip: float | None = None, make: Any = CGQ, **options: Any
) -> tuple[nn.Module, list[float], list[Any]]:
    model = Module()
    optimizer = make(model.parameters(), **options)
    torch.manual_seed(2)
    losses, searches = [], []
    for _ in range(EPOCHS):
        for x, y in batches():

            def closure(backward: bool) -> Tensor:
                loss = nn.functional.mse_loss(model(x), y)
                if backward:
                    loss.backward()
                    if clip is not None:
                        with optimizer.clipping():
                            nn.utils.clip_grad_norm_(model.parameters(), clip)
                return loss

            losses.append(float(optimizer.step(closure)))
            searches.append(optimizer.last_search)
    return model, losses, searches


def assert_same(net: Any, model: nn.Module) -> None:
    ours, theirs = net.module_.state_dict(), model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def recorded(net: Any) -> list[float]:
    return [batch["train_loss"] for epoch in net.history[:, "batches"] for batch in epoch]


@pytest.mark.parametrize("options", [{}, {"search_prob": 0.5, "smoothing": 0.5}])
def test_it_equals_the_loop(options: dict[str, Any]) -> None:
    calls = Calls()
    given = {f"optimizer__{name}": value for name, value in options.items()}
    net = fitted(made(callbacks=[calls], **given))
    model, losses, searches = looped(**options)
    assert_same(net, model)
    assert calls.searches == searches
    evaluations = sum(search.evaluations for search in searches if search)
    assert evaluations > 5
    assert net.module_.passes == model.passes == len(losses) + evaluations
    assert recorded(net) == losses
    assert calls.notified == len(losses)


def test_it_is_a_mixin_with_defaults_of_its_own() -> None:
    class Regressor(CGQNet, NeuralNetRegressor):  # type: ignore[misc]
        pass

    net = Regressor(Module, max_epochs=EPOCHS, batch_size=8, train_split=None, verbose=0)
    assert net.get_params()["lr"] == 0.3
    assert_same(fitted(clone(net)), looped()[0])


def test_clipping_equals_the_loop() -> None:
    calls = Calls()
    net = fitted(made(callbacks=[("clip", GradientNormClipping(0.05)), ("calls", calls)]))
    model, _, searches = looped(clip=0.05)
    assert_same(net, model)
    assert calls.searches == searches


def around_adamw(params: Any, lr: float, search_prob: float = 0.5) -> LineSearch:
    return LineSearch(torch.optim.AdamW(params, lr=lr), search_prob=search_prob)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_line_search_equals_the_loop(clip: float | None) -> None:
    calls = Calls()
    clipping = [] if clip is None else [("clip", GradientNormClipping(clip))]
    settings = {"optimizer": around_adamw, "optimizer__search_prob": 0.3}
    net = fitted(made(callbacks=[*clipping, ("calls", calls)], **settings))
    model, losses, searches = looped(clip, around_adamw, lr=0.3, search_prob=0.3)
    assert_same(net, model)
    assert recorded(net) == losses
    assert calls.searches == searches
    assert all(searches)


def test_schedulers_act_on_the_ceiling() -> None:
    net = fitted(made(callbacks=[LRScheduler("ExponentialLR", gamma=0.5)]))
    assert net.optimizer_.param_groups[0]["lr"] == pytest.approx(0.3 * 0.5**EPOCHS)


@pytest.mark.filterwarnings("ignore:This closure runs backward")
@pytest.mark.parametrize("kind", ["NeuralNet", "own step"])
def test_skorchs_own_closure_gives_the_same_run(kind: str) -> None:
    class OwnStep(CGQNet):
        def train_step_single(self, batch: Any, **fit_params: Any) -> Any:
            return super().train_step_single(batch, **fit_params)

    calls = Calls()
    net = fitted(made(NeuralNet if kind == "NeuralNet" else OwnStep, callbacks=[calls]))
    model, losses, searches = looped()
    assert_same(net, model)
    assert calls.searches == searches
    assert calls.notified == net.module_.passes  # a backward for every probe
    assert recorded(net) == losses


def test_skorchs_own_closure_says_what_it_costs() -> None:
    with pytest.warns(UserWarning, match="every probe of the line search pays for a backward"):
        fitted(made(NeuralNet))


@pytest.mark.filterwarnings("ignore:No step had a closure:UserWarning")
@pytest.mark.parametrize("kind", [CGQNet, NeuralNet])
def test_a_dropped_closure_takes_average_steps(kind: Any) -> None:
    class Dropping(kind):  # type: ignore[misc]
        """As skorch's AccelerateMixin does."""

        def _step_optimizer(self, step_fn: Any) -> None:
            step_fn()
            self.optimizer_.step()

    calls = Calls()
    net = fitted(made(Dropping, callbacks=[calls]))
    assert calls.searches == [None] * 15
    model = Module()
    optimizer = CGQ(model.parameters())
    torch.manual_seed(2)
    for _ in range(EPOCHS):
        for x, y in batches():
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    assert_same(net, model)


@pytest.mark.parametrize("how", ["files", "pickle"])
def test_resuming_equals_continuing(tmp_path: Path, how: str) -> None:
    whole = fitted(made(optimizer__search_prob=0.5))
    whole.partial_fit(*data())
    net = fitted(made(optimizer__search_prob=0.5))
    draws = torch.get_rng_state()
    if how == "pickle":
        again = pickle.loads(pickle.dumps(net))
    else:
        files = {"f_params": tmp_path / "net.pt", "f_optimizer": tmp_path / "optimizer.pt"}
        net.save_params(**files)
        assert "param_groups" in torch.load(files["f_optimizer"], weights_only=True)
        again = made(optimizer__search_prob=0.5).initialize()
        again.load_params(**files)
    torch.set_rng_state(draws)
    again.partial_fit(*data())
    assert_same(again, whole.module_)


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "with_skorch.py"), run_name="__main__")
    found = re.search(r"accuracy ([\d.]+)", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) > 0.9
