"""COCOB beside the paper's formulas, one number at a time, and what can be wrong."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from cgqbench.methods.baselines import COCOB


class OneCoordinate:
    """Algorithm 2 of the paper for one number, in Python's own arithmetic."""

    def __init__(self, theta: float, alpha: float, decay: float, eps: float) -> None:
        self.theta = self.start = theta
        self.alpha, self.decay = alpha, decay
        self.largest, self.total, self.negative, self.reward = eps, 0.0, 0.0, 0.0

    def step(self, g: float) -> None:
        g += self.decay * self.theta
        self.largest = max(self.largest, abs(g))
        self.total += abs(g)
        self.reward = max(self.reward - g * (self.theta - self.start), 0.0)
        self.negative -= g
        scale = self.largest * max(self.total + self.largest, self.alpha * self.largest)
        self.theta = self.start + self.negative / scale * (self.largest + self.reward)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def loss_of(model: nn.Module, batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch)
    inputs, targets = (torch.randn(8, n, generator=generator).double() for n in (3, 2))
    return nn.functional.mse_loss(model(inputs), targets)


def trained(model: nn.Module, optimizer: COCOB, batches: range) -> None:
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def values(model: nn.Module) -> list[float]:
    return torch.cat([param.detach().flatten() for param in model.parameters()]).tolist()


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("alpha", [1.0, 100.0])
def test_every_coordinate_bets_as_the_paper_says(alpha, decay):
    model = network()
    optimizer = COCOB(model.parameters(), alpha=alpha, weight_decay=decay)
    twins = [OneCoordinate(theta, alpha, decay, 1e-8) for theta in values(model)]
    for batch in range(200):
        optimizer.zero_grad()
        loss = optimizer.step(lambda batch=batch: with_gradients(model, batch))
        assert loss == loss_of_twins(model, batch, twins)
        gradients = torch.cat([param.grad.flatten() for param in model.parameters()])
        for twin, g in zip(twins, gradients.tolist(), strict=True):
            twin.step(g)
        assert values(model) == pytest.approx([twin.theta for twin in twins], rel=1e-9)
        put(model, twins)  # a rounding in a bet is soon a larger one in the next gradient


def with_gradients(model: nn.Module, batch: int) -> torch.Tensor:
    loss = loss_of(model, batch)
    loss.backward()
    return loss


def loss_of_twins(model: nn.Module, batch: int, twins: list[OneCoordinate]) -> torch.Tensor:
    before = copy.deepcopy(model)
    put(before, twins)
    return loss_of(before, batch)


def put(model: nn.Module, twins: list[OneCoordinate]) -> None:
    thetas = torch.tensor([twin.theta for twin in twins], dtype=torch.float64)
    nn.utils.vector_to_parameters(thetas, model.parameters())


def one_tensor_at_a_time(
    param: Tensor, grad: Tensor, state: dict[str, Tensor], alpha: float, decay: float
) -> None:
    """The formula on one tensor, in the order of operations that fixes the last bit."""
    if not state:
        state.update({name: torch.zeros_like(param) for name in ("total", "negative", "reward")})
        state.update(start=param.clone(), largest=1e-8 * torch.ones_like(param))
    grad = grad + decay * param if decay else grad
    state["largest"] = torch.maximum(state["largest"], grad.abs())
    state["negative"] = state["negative"] - grad
    state["total"] = state["total"] + grad.abs()
    state["reward"] = torch.addcmul(state["reward"], grad, param - state["start"], value=-1)
    state["reward"] = torch.maximum(state["reward"], torch.zeros_like(param))
    scale = torch.maximum(state["total"] + state["largest"], state["largest"] * alpha)
    bet = (state["reward"] + state["largest"]) * state["negative"] / (scale * state["largest"])
    param.copy_(bet + state["start"])


@pytest.mark.parametrize("decay", [0.0, 0.03125])  # a power of two, which rounds nothing
def test_together_and_one_by_one_tensors_have_the_same_bits(decay):
    torch.manual_seed(0)
    shapes = (3,), (4, 5), (), (2, 3, 4)
    params = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    alone = [param.detach().clone() for param in params]
    states: list[dict[str, Tensor]] = [{} for _ in params]
    optimizer = COCOB(params, weight_decay=decay)
    for _ in range(100):
        for param, copied, state in zip(params, alone, states, strict=True):
            param.grad = torch.randn_like(param)
            one_tensor_at_a_time(copied, param.grad, state, 100.0, decay)
        optimizer.step()
        assert all(map(torch.equal, params, alone))


def test_a_coordinate_that_lost_all_begins_its_reward_at_zero():
    theta = nn.Parameter(torch.tensor([0.0], dtype=torch.float64))
    optimizer = COCOB([theta], alpha=1.0)
    rewards = []
    for g in (-1.0, -1.0, 5.0):
        theta.grad = torch.tensor([g], dtype=torch.float64)
        optimizer.step()
        rewards.append(optimizer.state[theta]["reward"].item())
    assert rewards == [0.0, 0.5, 0.0]


def test_it_goes_on_from_its_state_as_if_never_interrupted():
    whole, cut = network(), network()
    optimizer = COCOB(whole.parameters())
    trained(whole, optimizer, range(40))
    first = COCOB(cut.parameters())
    trained(cut, first, range(15))
    second = COCOB(cut.parameters())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    trained(cut, second, range(15, 40))
    assert values(cut) == values(whole)


def test_groups_have_settings_of_their_own_and_what_has_no_gradient_stays():
    model = network()
    last, unused = model[2], nn.Parameter(torch.ones(2))
    groups = [{"params": [*model[0].parameters(), unused]}, {"params": last.parameters()}]
    groups[1]["alpha"] = 1.0
    optimizer = COCOB(groups, alpha=1e6)
    before = values(model[0]), values(last)
    trained(model, optimizer, range(3))
    moved = [
        max(abs(a - b) for a, b in zip(values(part), old, strict=True))
        for part, old in zip((model[0], last), before, strict=True)
    ]
    assert 0.0 < moved[0] < 1e-4 < moved[1]
    assert unused.tolist() == [1.0, 1.0]
    assert unused not in optimizer.state


@pytest.mark.parametrize(
    ("name", "values"), [("alpha", (0.0, 50.0)), ("weight_decay", (0.0, 9.0)), ("eps", (1e-8, 9.0))]
)
def test_each_setting_may_be_a_groups_own(name, values):
    def moved(*settings: float) -> list[float]:
        params = [nn.Parameter(torch.ones(1)) for _ in settings]
        pairs = zip(params, settings, strict=True)
        optimizer = COCOB([{"params": [param], name: one} for param, one in pairs], alpha=0.0)
        for g in (1.0, -0.5):
            for param in params:
                param.grad = torch.full((1,), g)
            optimizer.step()
        return [param.item() for param in params]

    both = moved(*values)
    assert both == [*moved(values[0]), *moved(values[1])]
    assert both[0] != both[1]


def test_the_first_bets_are_kept_small_for_a_hundred_steps():
    theta = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    theta.grad = torch.full_like(theta, 7.0)
    COCOB([theta]).step()
    assert theta.item() == -0.01


@pytest.mark.parametrize("eps", [1e-8, 1e-300])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_coordinate_without_a_gradient_stays_where_it_is(dtype, alpha, eps):
    theta = nn.Parameter(torch.ones(2, dtype=dtype))
    optimizer = COCOB([theta], alpha=alpha, eps=eps)
    for _ in range(3):
        theta.grad = torch.tensor([0.0, 1.0], dtype=dtype)
        optimizer.step()
    assert theta[0].item() == 1.0
    assert theta[1].item() < 1.0


@pytest.mark.parametrize("name", ["alpha", "weight_decay", "eps"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_settings_that_make_no_sense_name_the_cure(name, value):
    with pytest.raises(ValueError, match=f"Invalid {name} value.*Use a"):
        COCOB(network().parameters(), **{name: value})
    params = list(network().parameters())
    with pytest.raises(ValueError, match=f"Invalid {name} value.*Use a"):
        COCOB([{"params": params[:1]}, {"params": params[1:], name: value}])
    optimizer = COCOB(params[:1])
    with pytest.raises(ValueError, match=f"Invalid {name} value.*Use a"):
        optimizer.add_param_group({"params": params[1:], name: value})
    assert len(optimizer.param_groups) == 1


def test_without_a_first_scale_there_is_nothing_to_divide_by():
    with pytest.raises(ValueError, match=r"Invalid eps value.*positive"):
        COCOB(network().parameters(), eps=0.0)


def test_sparse_gradients_name_the_cure_before_anything_moves():
    first, words = nn.Parameter(torch.ones(2)), nn.Embedding(5, 2, sparse=True)
    optimizer = COCOB([{"params": [first]}, {"params": words.parameters()}])
    (words(torch.tensor([1, 3])).sum() + first.sum()).backward()
    with pytest.raises(ValueError, match="dense gradients"):
        optimizer.step()
    assert first.tolist() == [1.0, 1.0]


def test_complex_parameters_name_the_cure_before_anything_moves():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.complex64))
    optimizer = COCOB([{"params": [first]}, {"params": [second]}])
    (second.abs().sum() + first.sum()).backward()
    with pytest.raises(ValueError, match="view_as_real"):
        optimizer.step()
    assert first.tolist() == [1.0, 1.0]


def test_the_first_scale_is_that_of_the_paper():
    theta = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    theta.grad = torch.full_like(theta, 1e-9)
    COCOB([theta], alpha=0.0).step()
    # L_1 = 1e-8, G_1 = 1e-9: a bet of -1e-9 / (1e-8 + 1e-9)
    assert theta.item() == pytest.approx(-1 / 11)
