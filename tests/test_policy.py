"""The coin, the averages and the first trial."""

from __future__ import annotations

import math
import random

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cgq.rules.first_trial import TrialDecay, first_trial
from cgq.rules.when_to_search import coin, smoothed

SETTINGS = settings(deadline=None, derandomize=True)
N = 10_000


def draws(seed: int, probability: float) -> numpy.ndarray:
    return numpy.array([coin(seed, step, probability) for step in range(N)])


@pytest.mark.parametrize("seed", [0, 1, 12345, -7, 2**70])
@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_coin_is_fair_and_forgetful(seed: int, probability: float) -> None:
    heads = draws(seed, probability)
    spread = math.sqrt(probability * (1 - probability) / N)
    assert abs(heads.mean() - probability) < 4 * spread
    # A draw after heads is as likely to be heads: neighbouring steps are not correlated.
    after_heads = heads[1:][heads[:-1]]
    assert abs(after_heads.mean() - probability) < 4 * spread / math.sqrt(probability)


def test_coin_differs_between_seeds() -> None:
    agree = (draws(0, 0.5) == draws(1, 0.5)).mean()
    assert abs(agree - 0.5) < 4 * 0.5 / math.sqrt(N)


@SETTINGS
@given(seed=st.integers(), step=st.integers(0, 10**9), low=st.floats(0, 1), high=st.floats(0, 1))
def test_coin_is_a_function_of_its_arguments(seed: int, step: int, low: float, high: float) -> None:
    low, high = sorted((low, high))
    assert coin(seed, step, low) == coin(seed, step, low)
    assert coin(seed, step, high) or not coin(seed, step, low)  # one draw, compared with both
    assert coin(seed, step, 1.0)
    assert not coin(seed, step, 0.0)


def test_coin_is_the_same_in_every_process_and_version() -> None:
    """A run saved today is resumed later: the draws are part of the format."""
    assert [step for step in range(60) if coin(0, step, 0.1)] == [3, 7, 18, 23, 24, 31, 37, 41, 52]


def test_coin_leaves_global_generators_alone() -> None:
    random.seed(0)
    numpy.random.seed(0)  # the global generator is the point
    torch.manual_seed(0)
    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    first = draws(3, 0.3)
    assert random.getstate() == before[0]
    assert all(map(numpy.array_equal, numpy.random.get_state(), before[1]))
    assert torch.equal(torch.get_rng_state(), before[2])
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    assert (draws(3, 0.3) == first).all()


@SETTINGS
@given(
    share=st.floats(0.0, 0.99),
    found=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=20),
)
def test_smoothed_is_a_moving_average_without_bias_to_zero(
    share: float, found: list[float]
) -> None:
    """The weights sum to one from the start: the first value found stands in for the past."""
    value = 0.0
    for x in found:
        value = smoothed(value, x, share)
    last = len(found) - 1
    weights = [share**last] + [(1 - share) * share ** (last - k) for k in range(1, last + 1)]
    assert sum(weights) == pytest.approx(1.0)
    assert value == pytest.approx(sum(w * x for w, x in zip(weights, found, strict=True)))


@SETTINGS
@given(st.lists(st.floats(0.01, 1.0), min_size=100, max_size=100))
def test_trial_decays_only_while_longer_than_the_mean_step(found: list[float]) -> None:
    decay = TrialDecay()
    scale = 1.0
    for start in range(0, 100, 20):
        window = found[start : start + 20]
        trial = 0.5 * scale
        for step in window:
            assert decay.scale == scale  # within a window nothing changes
            decay = decay.after(trial, step)
        if trial > sum(window) / 20:
            scale *= 0.8
        assert decay.scale == scale
        assert decay == TrialDecay(scale)  # the next window starts from nothing


def test_trial_decay_comes_to_rest_below_the_mean_step() -> None:
    """From 1.0 with steps of 0.3: 0.8⁶ = 0.262 is the first that no longer exceeds them."""
    decay = TrialDecay()
    scales = []
    for _ in range(10):
        for _ in range(20):
            decay = decay.after(1.0 * decay.scale, 0.3)
        scales.append(decay.scale)
    assert scales == pytest.approx([0.8 ** min(k, 6) for k in range(1, 11)])


@SETTINGS
@given(
    probe=st.none() | st.floats(1e-9, 1e9),
    ceiling=st.floats(1e-9, 1e9) | st.just(math.inf),
)
def test_first_trial(probe: float | None, ceiling: float) -> None:
    trial = first_trial(probe, ceiling)
    assert 0.0 < trial <= ceiling
    if probe is not None:
        assert trial in (probe, ceiling)
        assert trial <= probe
    elif ceiling >= 0.3:
        assert trial == pytest.approx(0.1)
    else:
        assert 3.0 * trial == pytest.approx(ceiling)
