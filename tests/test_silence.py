"""What a run that comes to nothing is told: no loss was shown, or no step is finite."""

import warnings

import pytest
import torch
from torch import nn

from cgq import CGQ, LineSearch
from cgq.engine.messages import CONSTANT, LOST, UNSEEN
from cgq.engine.run_guard import LONG, MANY


def line_search(weight):
    return LineSearch(torch.optim.SGD([weight], lr=0.1))


def relative(weight):
    return CGQ([weight], max_relative_step=0.005, search_prob=0.1)


def plain(weight):
    return CGQ([weight])


def weight_of(*values):
    return nn.Parameter(torch.tensor(values or (1.0, -2.0), dtype=torch.float64))


def messages(act, times):
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for _ in range(times):
            act()
    return [str(one.message) for one in given]


def step_by_gradient(optimizer, weight):
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("make", [line_search, relative])
def test_steps_that_show_no_loss_are_noticed_once(make):
    weight = weight_of()
    optimizer = make(weight)
    assert messages(lambda: step_by_gradient(optimizer, weight), LONG - 1) == []
    assert messages(lambda: step_by_gradient(optimizer, weight), 50) == [UNSEEN]


def test_a_closure_that_forgets_to_return_its_loss_is_noticed_too():
    weight = weight_of()
    optimizer = line_search(weight)

    def forgetful():
        weight.grad = None
        weight.square().sum().backward()

    assert messages(lambda: optimizer.step(forgetful), LONG) == [UNSEEN]


def test_where_nothing_is_to_be_searched_no_loss_is_missed():
    weight = weight_of()
    optimizer = LineSearch(torch.optim.SGD([weight]), search_prob=0.0)
    assert messages(lambda: step_by_gradient(optimizer, weight), LONG + 10) == []


def test_a_run_that_has_shown_a_loss_may_step_without():
    weight = weight_of()
    optimizer = line_search(weight)
    optimizer.step(lambda: weight.square().sum())
    assert messages(lambda: step_by_gradient(optimizer, weight), LONG + 10) == []


def test_a_run_that_was_searched_before_it_was_watched_may_step_without_too():
    weight = weight_of()
    first = LineSearch(torch.optim.SGD([weight], lr=0.1), search_prob=1.0)
    for _ in range(LONG):
        first.step(lambda: weight.square().sum())
    optimizer = line_search(weight)
    optimizer.load_state_dict(first.state_dict())
    assert messages(lambda: step_by_gradient(optimizer, weight), 3) == []


@pytest.mark.parametrize("make", [line_search, relative, plain])
def test_a_run_of_which_no_step_is_finite_is_told_so_once(make):
    weight = weight_of()
    optimizer, before = make(weight), weight.detach().clone()

    def lost():
        optimizer.step(lambda: weight.square().sum() * torch.nan)

    assert messages(lost, MANY - 1) == []
    assert messages(lost, 2 * MANY) == [LOST]
    assert torch.equal(weight, before)


@pytest.mark.parametrize("make", [line_search, relative, plain])
def test_a_run_of_which_no_trial_is_finite_is_told_so_too(make):
    weight = weight_of()
    optimizer, before = make(weight), weight.detach().clone()

    def cliff():
        here = torch.equal(weight, before)
        return weight.square().sum() * (1.0 if here else torch.nan)

    assert messages(lambda: optimizer.step(cliff), 2 * MANY) == [LOST]
    assert torch.equal(weight, before)


def test_only_steps_lost_in_a_row_count():
    weight, taken = weight_of(), iter(range(1000))
    optimizer = line_search(weight)

    def now_and_then():
        factor = 1.0 if next(taken) % (MANY - 1) == 0 else torch.nan
        optimizer.step(lambda: weight.square().sum() * factor)

    assert messages(now_and_then, 5 * MANY) == []


def test_a_minimum_is_not_taken_for_a_loss_that_is_not_finite():
    weight = weight_of(0.0, 0.0)
    optimizer = plain(weight)
    assert messages(lambda: optimizer.step(lambda: weight.square().sum()), 2 * MANY) == []
    weight = weight_of()
    optimizer = plain(weight)  # whose search finds nothing below a loss that is flat
    flat = lambda: weight.square().sum() - weight.detach().square().sum()  # noqa: E731
    assert messages(lambda: optimizer.step(flat), 2 * MANY) == [CONSTANT]


def test_a_base_that_loses_itself_is_not_silent():
    dadapt = pytest.importorskip("pytorch_optimizer").DAdaptAdam
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    inputs = torch.randn(64, 10)
    targets = torch.randn(64, 1) + inputs[:, :1]
    optimizer = LineSearch(dadapt(model.parameters()))

    def step():
        optimizer.step(lambda: nn.functional.mse_loss(model(inputs), targets))

    assert LOST in messages(step, 300)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
