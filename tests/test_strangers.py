"""What hurts in other people's training scripts: each case small, but real."""

from __future__ import annotations

import math

import pytest
import torch
from test_transactions import Run, assert_same, raising
from torch import nn
from torch.distributions import Normal

from cgq import CGQ


def test_a_trial_outside_of_a_distribution_s_domain_does_not_end_the_run() -> None:
    """A scale that a trial makes negative is refused by torch.distributions."""
    torch.manual_seed(0)
    data = 3.0 + 0.02 * torch.randn(100)
    mean, scale = nn.Parameter(torch.tensor(2.9)), nn.Parameter(torch.tensor(0.1))
    optimizer = CGQ([mean, scale])
    with pytest.warns(UserWarning, match=r"A trial .* raised.*rejected.*ValueError: .*scale"):
        for _ in range(200):
            loss = optimizer.step(lambda: -Normal(mean, scale).log_prob(data).mean())
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
