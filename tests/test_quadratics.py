"""Conjugate gradients end after n steps: fit, search, momentum and direction, all at once."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cgq import (
    CGQ,
    dai_yuan,
    fletcher_reeves,
    hestenes_stiefel,
    least_squares,
    polak_ribiere,
    two_point,
)
from cgq.rules.momentum import Rule
from cgq.rules.parabola import Fit

FITS = [two_point, least_squares]
RULES = [polak_ribiere, fletcher_reeves, hestenes_stiefel, dai_yuan]


class Quadratic:
    """½(θ-θ*)ᵀQ(θ-θ*), with θ as two parameters of odd shapes."""

    def __init__(self, eigenvalues: Tensor, seed: int) -> None:
        n = len(eigenvalues)
        generator = torch.Generator().manual_seed(seed)
        basis = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator))[0]
        self.Q = basis @ torch.diag(eigenvalues) @ basis.T
        self.minimiser = torch.randn(n, dtype=torch.float64, generator=generator)
        theta = torch.randn(n, dtype=torch.float64, generator=generator)
        self.params = [
            theta[: n // 2].clone().requires_grad_(),
            theta[n // 2 :].reshape(1, -1).clone().requires_grad_(),
        ]

    def theta(self) -> Tensor:
        return torch.cat([param.flatten() for param in self.params])

    def loss(self) -> Tensor:
        distance = self.theta() - self.minimiser
        return 0.5 * distance @ self.Q @ distance

    def gradient(self) -> Tensor:
        return self.Q @ (self.theta().detach() - self.minimiser)

    def optimizer(self, rule: Rule, fit: Fit) -> CGQ:
        return CGQ(self.params, lr=math.inf, momentum=rule, max_momentum=math.inf, fit=fit)


def spectrum(n: int, condition: float) -> Tensor:
    return torch.logspace(0.0, math.log10(condition), n, dtype=torch.float64)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize(
    # As far as textbook CG with the exact Q stays well below 1e-8 in float64 itself.
    ("n", "condition"),
    [(2, 300.0), (5, 30.0), (10, 10.0), (50, 10.0)],
)
def test_n_steps_minimise_n_variables(n: int, condition: float, fit: Fit, rule: Rule) -> None:
    for seed in range(3):
        problem = Quadratic(spectrum(n, condition), seed)
        assert problem.gradient().norm() > 1.0
        optimizer = problem.optimizer(rule, fit)
        for _ in range(n):
            optimizer.step(problem.loss)
        assert problem.gradient().norm() < 1e-8


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fit", FITS)
def test_one_step_for_each_distinct_eigenvalue(fit: Fit, rule: Rule) -> None:
    """Not just fast convergence: in 50 variables four curvatures take four steps, not three."""
    for seed in range(3):
        problem = Quadratic(torch.tensor([1.0, 3.0, 10.0, 20.0] * 12 + [1.0, 20.0]).double(), seed)
        optimizer = problem.optimizer(rule, fit)
        norms = []
        for _ in range(4):
            optimizer.step(problem.loss)
            norms.append(float(problem.gradient().norm()))
        assert norms[2] > 1e-3
        assert norms[3] < 1e-8


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fit", FITS)
def test_directions_are_conjugate_and_gradients_orthogonal(fit: Fit, rule: Rule) -> None:
    problem = Quadratic(spectrum(6, 50.0), seed=4)
    optimizer = problem.optimizer(rule, fit)
    gradients, directions = [], []
    for _ in range(6):
        gradients.append(problem.gradient())
        optimizer.step(problem.loss)
        p = torch.cat([optimizer.state[param]["direction"].flatten() for param in problem.params])
        directions.append(p / (p @ problem.Q @ p).sqrt())
        # The step is the exact one, -g·p / pᵀQp.
        exact = -(gradients[-1] @ p) / (p @ problem.Q @ p)
        assert optimizer.param_groups[0]["step_size"] == pytest.approx(float(exact), rel=1e-6)
    G = torch.stack([g / g.norm() for g in gradients])
    P = torch.stack(directions)
    identity = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(G @ G.T, identity, rtol=0.0, atol=1e-6)
    torch.testing.assert_close(P @ problem.Q @ P.T, identity, rtol=0.0, atol=1e-6)
