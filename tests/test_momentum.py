"""The four rules, where they agree, and the conjugacy they are made for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cgq import bounded, dai_yuan, fletcher_reeves, hestenes_stiefel, polak_ribiere
from cgq.rules.momentum import Rule

RULES = [polak_ribiere, fletcher_reeves, hestenes_stiefel, dai_yuan]


def random_spd(n: int, condition: float, generator: torch.Generator) -> Tensor:
    basis, _ = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator))
    values = torch.logspace(0.0, math.log10(condition), n, dtype=torch.float64)
    return basis @ torch.diag(values) @ basis.T


@pytest.mark.parametrize("seed", range(5))
def test_formulas(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    g, h, p = torch.randn(3, 17, dtype=torch.float64, generator=generator)
    y = g - h
    expected = {
        polak_ribiere: (g * y).sum() / h.square().sum(),
        fletcher_reeves: g.square().sum() / h.square().sum(),
        hestenes_stiefel: (g * y).sum() / (p * y).sum(),
        dai_yuan: g.square().sum() / (p * y).sum(),
    }
    for rule, beta in expected.items():
        torch.testing.assert_close(rule(g, h, p), beta, rtol=1e-12, atol=0.0)
    betas = torch.stack(list(expected.values()))
    # Off a line search the four differ, or comparing each with its own formula proves little.
    assert torch.pdist(betas[:, None]).min() > 1e-3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_exact_line_search_makes_directions_conjugate(rule: Rule, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    n = 8
    Q = random_spd(n, 30.0, generator)
    theta = torch.randn(n, dtype=torch.float64, generator=generator)
    h, p = Q @ theta, -(Q @ theta)
    directions = [p]
    for _ in range(n - 2):
        theta = theta - (h @ p) / (p @ Q @ p) * p
        g = Q @ theta
        beta = rule(g, h, p)
        optimal = (g @ Q @ p) / (p @ Q @ p)  # the paper's β for a known Hessian
        torch.testing.assert_close(beta, optimal, rtol=1e-7, atol=1e-9)
        for other in RULES:
            torch.testing.assert_close(other(g, h, p), beta, rtol=1e-7, atol=1e-9)
        h, p = g, -g + beta * p
        directions.append(p)
    P = torch.stack([p / (p @ Q @ p).sqrt() for p in directions])
    # Conjugate to the last direction, and by induction to all of them.
    identity = torch.eye(len(directions), dtype=torch.float64)
    torch.testing.assert_close(P @ Q @ P.T, identity, rtol=0.0, atol=1e-7)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    beta=st.floats(allow_nan=True, allow_infinity=True),
    bound=st.floats(0.0, allow_nan=False, allow_infinity=True),
    as_tensor=st.booleans(),
)
def test_bounded(beta: float, bound: float, as_tensor: bool) -> None:
    found = bounded(torch.tensor(beta, dtype=torch.float64) if as_tensor else beta, bound)
    assert isinstance(found, torch.Tensor) == as_tensor
    assert float(found) == (min(max(0.0, beta), bound) if math.isfinite(beta) else 0.0)


@pytest.mark.parametrize("rule", RULES)
def test_no_previous_step_means_no_momentum(rule: Rule) -> None:
    g, zero = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    assert float(bounded(rule(g, zero, zero), math.inf)) == 0.0
