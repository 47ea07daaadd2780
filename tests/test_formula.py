"""Formulas: the bits that torch and the host give, with one kernel; interpreted without a GPU."""

from __future__ import annotations

import math
import os
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from cgq.engine.ahead import _next_trial
from cgq.engine.direction import Plan
from cgq.rules.first_trial import clear_trial, first_trial, promising_trial
from cgq.rules.momentum import bounded
from cgq.rules.scalars import (
    as_tensor,
    as_tensors,
    choose,
    finite_or_zero,
    is_finite,
    is_zero,
    least,
    quotient,
    stacked,
    times,
)
from cgq.vectors import formula as formulas
from cgq.vectors.formula import formula

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")

VALUES = [0.0, -0.0, 0.1, -3.7, 1e-320, 5e307, math.inf, -math.inf, math.nan, 1 / 3]


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device=DEVICE)


def operations(a: Any, b: Any) -> list[Any]:
    return [
        a + b, a - b, a * b, a / b, 0.1 + a, 0.1 - a, 0.1 * a, a - 0.1, quotient(0.1, a),
        quotient(a, 0.3),
        a**0.5, a**2, a**2.0, -a, abs(a), a < b, a <= b, a > b, a >= b, a == b, a != b, a < 0.1,
        (a > 0.0) & (b < 0.0), choose(a > b, a, b), choose(a > b, 0.25, b), choose(a < b, a, 0.1),
        least(a, b), least(0.1, a), least(a, 0.1), is_finite(a), times(1.0, a), times(0.3, a),
        choose(is_finite(a), a, 0.0), bounded(a / b, 0.8), (a + b) * (a + b) - a * a,
    ]  # fmt: skip


def same(found: Tensor, expected: Tensor) -> Tensor:
    return (found == expected) | (found.isnan() & expected.isnan())


def test_every_operation_has_the_bits_of_torch() -> None:
    for x, y in product(VALUES, repeat=2):
        expected = stacked(DEVICE, *operations(number(x), number(y)))
        found = stacked(DEVICE, *operations(formula(number(x)), formula(number(y))))
        assert bool(same(found, expected).all()), (x, y, found, expected)


def test_the_bits_of_the_host() -> None:
    torch.manual_seed(0)
    for x, y in torch.randn(20, 2, dtype=torch.float64).abs().tolist():
        expected = [x + y, x * y - y / x, 0.1 * x + 0.7 * y, (x * x + y * y) / 3.0, 0.1 / x]
        a, b = formula(number(x)), formula(number(y))
        found = [a + b, a * b - b / a, 0.1 * a + 0.7 * b, (a * a + b * b) / 3.0, 0.1 / a]
        assert stacked(DEVICE, *found).tolist() == expected


def test_rules_give_the_same() -> None:
    torch.manual_seed(1)
    for values in torch.randn(30, 5, dtype=torch.float64).tolist():
        answers = []
        for made in (number, lambda value: formula(number(value))):
            loss, slope, ceiling, noise, first = map(made, values)
            trial = promising_trial(first_trial(None, abs(ceiling)), slope, loss)
            trial = clear_trial(trial, slope, abs(noise) * 1e-3, abs(ceiling))
            plan = Plan(loss, 0.0 * loss, slope, abs(ceiling), trial, noise=abs(noise) * 1e-9)
            numbers = [trial, _next_trial(plan, first), finite_or_zero(first / (loss - loss))]
            answers.append(stacked(DEVICE, *numbers))
        assert bool(same(*answers).all())


def test_a_loss_that_the_host_knows_makes_the_same_trial() -> None:
    """Torch multiplies a float by the reciprocal of a tensor: another number than the quotient."""
    torch.manual_seed(2)
    for loss, slope in torch.randn(50, 2, dtype=torch.float64).abs().tolist():
        on_device, steep = number(-40.0 * slope), formula(number(-40.0 * slope))
        trials = [
            promising_trial(0.1, on_device, loss),
            promising_trial(0.1, on_device, number(loss)),
            promising_trial(0.1, steep, formula(number(loss))),
        ]
        clear = [
            clear_trial(1e-9, on_device, loss, 1.0),
            clear_trial(1e-9, on_device, number(loss), 1.0),
            clear_trial(1e-9, steep, formula(number(loss)), 1.0),
        ]
        for each in (trials, clear):
            assert len({value.item() for value in as_tensors(DEVICE, *each)}) == 1


def test_a_formula_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[str] = []
    compiled = formulas._compiled
    monkeypatch.setattr(formulas, "_compiled", lambda text: sources.append(text) or compiled(text))
    a, b = formula(number(2.0)), number(3.0)
    root = (a * b + 1.0) ** 0.5
    assert as_tensor(root, DEVICE) is as_tensor(root, DEVICE)
    assert len(sources) == 1
    twice = 2.0 * root
    assert twice.tensor(DEVICE).item() == 2.0 * math.sqrt(7.0)
    assert "sqrt" not in sources[1]
    one, two, three = as_tensors(DEVICE, twice + 1.0, b, 0.25)
    assert [one.item(), two.item(), three.item()] == [2.0 * math.sqrt(7.0) + 1.0, 3.0, 0.25]
    assert len(sources) == 3


def test_the_host_cannot_ask_for_what_is_not_computed() -> None:
    a = formula(number(2.0))
    with pytest.raises(TypeError, match="not computed yet"):
        bool(a > 1.0)
    with pytest.raises(NotImplementedError, match="power 3: add it to Formula"):
        a**3
    assert not is_zero(a)
    assert formula(0.5) == 0.5


def test_tensors_and_formulas_mix() -> None:
    a, b = number(2.0), formula(number(3.0))
    found = [a + b, a - b, a * b, a / b, a < b, a > b, (a < 5.0) & (b > 1.0)]
    assert stacked(DEVICE, *found).tolist() == [5.0, -1.0, 6.0, 2.0 / 3.0, 1.0, 0.0, 1.0]


def test_a_loss_of_another_dtype_is_widened() -> None:
    loss = torch.tensor(0.1, dtype=torch.float32, device=DEVICE)
    assert (formula(loss) * 1.0).tensor(DEVICE).item() == float(torch.tensor(0.1))
