"""LineSearch: the base's direction, a measured length under a relative ceiling."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from typing import Any

import pytest
import torch
from rounding import SHADOWS, Rounding
from test_quadratics import Quadratic, spectrum
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from wrapped_run import Run, is_well

from cgq import CGQ, ConjugateDescent, LineSearch, QuadraticSearch, least_squares, two_point
from ids import option_id

RHO = 0.01


@pytest.mark.parametrize(
    "options",
    [
        {"search_prob": 1.0},
        {"search_prob": 1.0, "fit": least_squares, "max_fits": 5},
        {"search_prob": 1.0, "smoothing": 0.5},
        {"search_prob": 1.0, "max_relative_step": 0.5},
    ],
    ids=option_id,
)
@pytest.mark.parametrize("lr", [1e-3, 0.01, 1.0])
@pytest.mark.parametrize(("n", "condition"), [(2, 300.0), (10, 10.0), (50, 10.0)])
def test_around_sgd_it_takes_the_steps_of_cgq_without_momentum(
    n: int, condition: float, lr: float, options: dict[str, Any]
) -> None:
    shared = {"max_relative_step": RHO, "fit": two_point, "smoothing": 0.0, **options}
    mine, its, *shadows = (Quadratic(spectrum(n, condition), 0) for _ in range(2 + SHADOWS))
    wrapped = LineSearch(torch.optim.SGD(mine.params, lr=lr), **shared)
    search = QuadraticSearch(shared.pop("fit"), shared.pop("max_fits", 3), descent_suffices=True)
    cgq, *blurred = (
        ConjugateDescent(problem.params, lr=math.inf, search=search, momentum=0.0, **shared)
        for problem in (its, *shadows)
    )
    rounding = Rounding()
    for _ in range(130):
        wrapped.step(mine.loss)
        cgq.step(its.loss)
        # What SGD did is the difference of two rounded points, an ulp off, and is then stretched.
        stretch = max(1.0, wrapped.param_groups[0]["step_size"] / lr)
        for shadow, optimizer in zip(shadows, blurred, strict=True):
            optimizer.step(lambda: rounding.off(shadow.loss()))
            for param in shadow.params:
                param.data = rounding.off(param.data, stretch)
        assert (wrapped.last_search is None) == (cgq.last_search is None)
        if wrapped.last_search and cgq.last_search:
            assert wrapped.last_search.evaluations == cgq.last_search.evaluations
        if float(mine.gradient().norm()) < 1e-4:  # below it, the loss has too few digits
            break
        step_size = cgq.param_groups[0]["step_size"]
        assert wrapped.param_groups[0]["step_size"] == pytest.approx(step_size, rel=1e-6)
        ends = [problem.theta() for problem in (mine, its, *shadows)]
        rounding.check("theta", ends[0], ends[1], ends[2:])


def test_one_step_is_snapshot_plus_factor_times_what_the_base_did() -> None:
    bare, run = Run(search_prob=1.0), Run(search_prob=1.0)
    for _ in range(5):
        before = run.vector()
        bare.model.load_state_dict(run.model.state_dict())
        bare.base.load_state_dict(copy.deepcopy(run.base.state_dict()))
        run.step()
        search = run.optimizer.last_search
        assert search is not None
        for mine, its in zip(bare.model.parameters(), run.model.parameters(), strict=True):
            mine.grad = its.grad
        bare.base.step()
        d = bare.vector() - before
        ceiling = 0.005 * float(before.norm() / d.norm())
        assert search.trial_steps[0] == pytest.approx(ceiling, rel=1e-12)
        factor = run.group["step_size"] / run.group["lr"]
        assert factor <= ceiling * (1 + 1e-12)
        torch.testing.assert_close(run.vector(), before + factor * d, rtol=1e-14, atol=1e-15)
        gradient = torch.cat([p.grad.flatten() for p in run.model.parameters()])
        assert search.slope == pytest.approx(float(gradient @ d), rel=1e-10)
        for state, other in zip(
            bare.base.state.values(), run.base.state.values(), strict=True
        ):  # the moments advance as if nothing had been searched
            assert all(torch.equal(state[name], other[name]) for name in state)


def test_unsearched_steps_use_the_share_of_their_own_ceiling() -> None:
    run = Run(search_prob=0.0, max_relative_step=RHO)
    for _ in range(5):
        before = run.vector()
        run.step()
        assert run.calls == 1
        assert run.optimizer.last_search is None
        moved = float((run.vector() - before).norm() / before.norm())
        assert moved == pytest.approx(RHO, rel=1e-9)
    for group in run.optimizer.param_groups:
        group["average"] = 0.25
    before = run.vector()
    run.step()
    moved = float((run.vector() - before).norm() / before.norm())
    assert moved == pytest.approx(RHO / 4, rel=1e-9)


def test_without_a_closure_the_gradients_at_hand_are_used() -> None:
    run = Run()
    run.closure().backward()
    before = run.vector()
    assert run.optimizer.step() is None
    moved = float((run.vector() - before).norm() / before.norm())
    assert moved == pytest.approx(0.005, rel=1e-9)
    assert run.group["steps"] == 1
    run.optimizer.zero_grad()
    run.optimizer.step()
    assert run.group["steps"] == 1  # without gradients it is no step


def test_an_update_that_climbs_is_taken_by_the_average_share() -> None:
    """Momentum carries SGD on against the gradient; its buffer must not restart."""
    weight = nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
    base = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    optimizer = LineSearch(base, search_prob=1.0, smoothing=0.0)
    optimizer.step(lambda: weight.square().sum())
    share, buffer = optimizer.param_groups[0]["average"], base.state[weight]["momentum_buffer"]
    expected = 0.9 * buffer - 0.1 * torch.ones(2, dtype=torch.float64)
    before = weight.detach().clone()
    optimizer.step(lambda: -0.1 * weight.sum())  # its gradient points the other way
    assert optimizer.last_search is None
    torch.testing.assert_close(base.state[weight]["momentum_buffer"], expected)
    moved = (weight.detach() - before).norm() / before.norm()
    assert float(moved) == pytest.approx(0.005 * share, rel=1e-9)
    assert float((weight.detach() - before) @ expected) < 0
    assert optimizer.param_groups[0]["average"] == share


@pytest.mark.parametrize("on_base", [False, True])
def test_a_scheduler_is_a_factor_on_the_ceiling(on_base: bool) -> None:
    run = Run(search_prob=0.0, max_relative_step=RHO)
    LambdaLR(run.base if on_base else run.optimizer, lambda epoch: 0.3)
    before = run.vector()
    run.step()
    moved = float((run.vector() - before).norm() / before.norm())
    assert moved == pytest.approx(0.3 * RHO, rel=1e-9)


def test_a_scheduler_may_be_there_first_and_may_stop_all() -> None:
    run = Run()
    factor = LambdaLR(run.base, lambda epoch: 0.5 if epoch < 1 else 0.0)
    wrapped = LineSearch(run.base, search_prob=0.0, max_relative_step=RHO)
    del run.group["full_lr"]
    wrapped = LineSearch(run.base, search_prob=0.0, max_relative_step=RHO)
    before = run.vector()
    wrapped.step(run.closure)
    assert float((run.vector() - before).norm() / before.norm()) == pytest.approx(RHO / 2)
    factor.step()
    before = run.vector()
    wrapped.step(run.closure)
    assert torch.equal(run.vector(), before)
    assert run.group["step_size"] == 0.0


def test_groups_keep_their_relative_rates() -> None:
    run = Run(search_prob=0.0)
    weights = list(run.model.parameters())
    base = torch.optim.SGD([{"params": weights[:2], "lr": 0.3}, {"params": weights[2:]}], lr=0.1)
    optimizer = LineSearch(base)
    before = [weight.detach().clone() for weight in weights]
    optimizer.step(run.closure)
    first, second = optimizer.param_groups
    assert first["step_size"] == pytest.approx(3 * second["step_size"])
    for index, (weight, old) in enumerate(zip(weights, before, strict=True)):
        rate = (first if index < 2 else second)["step_size"]
        torch.testing.assert_close(weight.detach(), old - rate * weight.grad, rtol=0, atol=1e-14)


def test_a_base_that_climbs_is_followed_upwards() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = LineSearch(torch.optim.SGD([weight], lr=1.0, maximize=True), search_prob=1.0)
    losses = [float(optimizer.step(lambda: -weight.square().sum())) for _ in range(20)]
    assert losses == sorted(losses)
    assert optimizer.last_search is not None
    assert optimizer.last_search.accepted
    assert optimizer.last_search.slope > 0


def test_clipped_gradients_make_the_direction_and_the_true_ones_the_slope() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]).double())
    optimizer = LineSearch(torch.optim.SGD([weight], lr=1.0), search_prob=1.0)

    def closure(backward: bool) -> Tensor:
        loss = weight.square().sum()
        if backward:
            loss.backward()
            with optimizer.clipping():
                nn.utils.clip_grad_norm_(weight, 0.1)
        return loss

    optimizer.step(closure)
    assert optimizer.last_search is not None
    assert optimizer.last_search.slope == pytest.approx(-0.1 * math.sqrt(20.0), rel=1e-5)


def test_a_base_that_writes_to_its_gradients_does_not_change_the_slope() -> None:
    class Greedy(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            for param in self.param_groups[0]["params"]:
                param.grad.zero_()

    weight = nn.Parameter(torch.tensor([1.0, 2.0]).double())
    optimizer = LineSearch(Greedy([weight], lr=1.0), search_prob=1.0)
    optimizer.step(lambda: weight.square().sum())
    assert optimizer.last_search is not None
    assert optimizer.last_search.slope == pytest.approx(-20.0)


@pytest.mark.parametrize("lr", [1e-6, 0.1, 1.0])
def test_weights_of_zeros_count_as_if_they_were_small(lr: float) -> None:
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = LineSearch(torch.optim.SGD([weight], lr=lr), search_prob=0.0)
    optimizer.step(lambda: (weight - 1).square().sum())
    torch.testing.assert_close(weight.detach(), torch.full((2,), 1e-4, dtype=torch.float64))


def test_an_update_lost_in_the_digits_of_the_weights_is_lifted() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = LineSearch(torch.optim.SGD([weight], lr=1e-12), search_prob=0.0)
    losses = [float(optimizer.step(lambda: weight.square().sum())) for _ in range(60)]
    assert losses[10] == losses[0]
    assert losses[-1] < 0.9 * losses[0]
    assert optimizer.param_groups[0]["lr"] == 1e-12
    assert optimizer.param_groups[0]["step_size"] == pytest.approx(0.0025, rel=1e-3)


def test_at_most_one_evaluation_more_than_fits() -> None:
    run = Run(search_prob=1.0, max_fits=2, max_relative_step=1.0)
    for _ in range(20):
        run.step()
        search = run.optimizer.last_search
        assert run.calls == 1 + (search.evaluations if search else 0) <= 1 + 1 + 2


def test_the_coin_decides_once_all_is_well() -> None:
    run = Run(search_prob=0.1)
    for _ in range(10):
        run.step()
        assert run.optimizer.last_search is not None
    is_well(run.optimizer)
    searched = []
    for _ in range(60):
        run.step()
        is_well(run.optimizer)
        searched.append(run.optimizer.last_search is not None)
    assert 1 <= sum(searched) <= 15


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (lambda p: torch.optim.LBFGS(p), "LBFGS evaluates the closure itself"),
        (lambda p: torch.optim.SparseAdam(p), "SparseAdam takes sparse gradients"),
        (lambda p: CGQ(p), "CGQ searches along its own line"),
        (lambda p: LineSearch(torch.optim.SGD(p)), "LineSearch searches along its own line"),
        (lambda p: p, "goes around an optimizer"),
        (lambda p: torch.optim.AdamW, "goes around an optimizer"),
    ],
)
def test_what_it_does_not_go_around(base: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        LineSearch(base([nn.Parameter(torch.ones(2))]))


@pytest.mark.parametrize(
    "options",
    [{"max_relative_step": 0.0}, {"search_prob": 1.5}, {"max_fits": 0}, {"smoothing": 1.0}],
    ids=option_id,
)
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"Invalid {next(iter(options))}"):
        LineSearch(torch.optim.SGD([nn.Parameter(torch.ones(2))]), **options)


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = LineSearch(torch.optim.SGD(table.parameters()))
    with pytest.raises(RuntimeError, match="sparse gradients"):
        optimizer.step(lambda: table(torch.tensor([1])).sum())


def test_groups_and_state_may_be_replaced_as_in_torch() -> None:
    old, new = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = LineSearch(torch.optim.AdamW([old]))
    for _ in range(3):
        optimizer.step(lambda: old.square().sum())
    optimizer.state = defaultdict(dict)
    assert not optimizer.base.state
    optimizer.param_groups = [{**optimizer.param_groups[0], "params": [new]}]
    assert optimizer.base.param_groups[0]["params"] == [new]
    before = old.detach().clone()
    optimizer.step(lambda: new.square().sum())
    assert torch.equal(old, before)
    assert (new < 1.0).all()
    assert optimizer.base.state[new]["step"] == 1
