"""Both fits against exact parabolas and against NumPy's least squares."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgq import Parabola, least_squares, two_point
from cgq.rules.parabola import Fit

SETTINGS = settings(deadline=None, derandomize=True)
without_slope = functools.partial(least_squares, with_slope=False)
FITS = [
    pytest.param(two_point, 1, id="two_point"),
    pytest.param(least_squares, 1, id="least_squares"),
    pytest.param(without_slope, 2, id="without_slope"),
]
UNITS = [1e-20, 1e-12, 1e-6, 1e6, 1e12, 1e20]
coefficients = st.floats(-10.0, 10.0)
# Not too close to each other, or the data themselves do not determine the parabola to 1e-9.
trial_sets = st.lists(st.integers(1, 20), min_size=2, max_size=5, unique=True).map(
    lambda tenths: [t / 10 for t in tenths]
)


def recovery_error(fit: Fit, q: Parabola, steps: list[float], unit: float) -> float:
    """How far the fit to q's own values is from q, with steps counted in `unit`.

    Counted so, q's coefficients are of order one whatever the unit: the loss changes by as much
    along the line, only the direction is longer or shorter.
    """
    x = [step * unit for step in steps]
    found = fit(q.c, q.b / unit, x, [q(step) for step in steps])
    return max(abs(found.a * unit * unit - q.a), abs(found.b * unit - q.b), abs(found.c - q.c))


@pytest.mark.parametrize(("fit", "least"), FITS)
@SETTINGS
@given(a=coefficients, b=coefficients, c=coefficients, steps=trial_sets, drop=st.booleans())
def test_recovers_any_parabola(
    fit: Fit, least: int, a: float, b: float, c: float, steps: list[float], drop: bool
) -> None:
    trials = steps[:least] if drop else steps
    assert recovery_error(fit, Parabola(a, b, c), trials, 1.0) < 1e-9


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("fit", "least"), FITS)
def test_recovers_parabolas_from_tiny_and_huge_steps(fit: Fit, least: int, unit: float) -> None:
    for q in (Parabola(1.5, -2.0, 3.0), Parabola(-0.7, -1.0, 0.25), Parabola(4.0, 1.0, -2.0)):
        for steps in ([0.3, 1.0][:least], [0.3, 1.0], [1.7, 0.2, 0.9]):
            assert recovery_error(fit, q, steps, unit) < 1e-9


@pytest.mark.parametrize("with_slope", [True, False])
@SETTINGS
@given(
    loss=coefficients,
    slope=coefficients,
    steps=trial_sets.filter(lambda steps: len(steps) >= 3),
    data=st.data(),
)
def test_least_squares_is_numpys_on_overdetermined_data(
    with_slope: bool, loss: float, slope: float, steps: list[float], data: st.DataObject
) -> None:
    losses = data.draw(st.lists(coefficients, min_size=len(steps), max_size=len(steps)))
    rows = [[0.0, 1.0, 0.0]] * with_slope + [[0.0, 0.0, 1.0]] + [[x * x, x, 1.0] for x in steps]
    values = numpy.array([slope] * with_slope + [loss, *losses])
    found = least_squares(loss, slope, steps, losses, with_slope=with_slope)
    assert len(rows) > 3
    numpy.testing.assert_allclose(found, numpy.linalg.pinv(rows) @ values, atol=1e-8, rtol=1e-9)
    by_lstsq = numpy.linalg.lstsq(numpy.array(rows), values)[0]
    numpy.testing.assert_allclose(found, by_lstsq, atol=1e-8, rtol=1e-9)


def rational_least_squares(
    loss: float, slope: float, steps: list[float], losses: list[float]
) -> list[Fraction]:
    """The normal equations XᵀXω = XᵀY in rational arithmetic, by Cramer's rule."""
    zero, one = Fraction(0), Fraction(1)
    rows = [[zero, one, zero], [zero, zero, one]]
    rows += [[Fraction(x) ** 2, Fraction(x), one] for x in steps]
    values = [Fraction(value) for value in (slope, loss, *losses)]
    gram = [[sum(r[i] * r[j] for r in rows) for j in range(3)] for i in range(3)]
    right = [sum(r[i] * y for r, y in zip(rows, values, strict=True)) for i in range(3)]

    def determinant(m: list[list[Fraction]]) -> Fraction:
        (a, b, c), (d, e, f), (g, h, i) = m
        return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)

    def with_column(k: int) -> list[list[Fraction]]:
        return [[right[i] if j == k else gram[i][j] for j in range(3)] for i in range(3)]

    return [determinant(with_column(k)) / determinant(gram) for k in range(3)]


@pytest.mark.parametrize("unit", [1.0, *UNITS])
def test_least_squares_of_rough_data_whatever_the_unit(unit: float) -> None:
    """The slope's row weighs 1/unit against the others: pinv loses the lighter rows."""
    generator = numpy.random.default_rng(0)
    for count in (1, 2, 3, 4) * 5:
        steps = [float(x) * unit for x in generator.permutation(10)[:count] + 1]
        loss, slope, *losses = generator.normal(size=2 + count).tolist()
        slope /= unit
        exact = rational_least_squares(loss, slope, steps, losses)
        found = least_squares(loss, slope, steps, losses)
        powers = [Fraction(unit) ** 2, Fraction(unit), Fraction(1)]
        wanted = [float(value * power) for value, power in zip(exact, powers, strict=True)]
        numpy.testing.assert_allclose(
            [found.a * unit * unit, found.b * unit, found.c], wanted, rtol=1e-9, atol=1e-9
        )


@SETTINGS
@given(loss=coefficients, step=st.floats(0.01, 10.0), value=coefficients)
def test_one_trial_without_slope_tells_only_up_or_down(
    loss: float, step: float, value: float
) -> None:
    """Two points do not make a parabola; the one chosen must meet both and point the right way."""
    q = without_slope(loss, -1.0, [step], [value])
    assert q.c == pytest.approx(loss, abs=1e-9)
    assert q(step) == pytest.approx(value, abs=1e-9)
    if abs(value - loss) > 1e-6:  # uphill: a minimum behind the start; downhill: A < 0
        assert (q.a > 0) == (q.b > 0) == (value > loss)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("fit", "place"),
    [(two_point, 0), (two_point, 1), (two_point, 3)]
    + [(least_squares, place) for place in range(4)]
    + [(without_slope, place) for place in (0, 2, 3)],
)
def test_what_is_not_finite_gives_no_finite_parabola(fit: Fit, place: int, bad: float) -> None:
    """`place`: φ(0), φ'(0), an older trial, the newest; left out are those a fit does not read."""
    numbers = [1.0, -1.0, 0.5, 0.4]
    assert fit(*numbers[:2], [0.1, 0.2], numbers[2:]).is_finite
    numbers[place] = bad
    assert not fit(*numbers[:2], [0.1, 0.2], numbers[2:]).is_finite


@pytest.mark.parametrize("fit", [two_point, least_squares, without_slope])
@pytest.mark.parametrize("step", [1e-3, 1.0, 1e20])
@pytest.mark.parametrize("value", [-1.7e308, 1.7e308])
def test_a_rise_beyond_the_largest_float_gives_no_finite_parabola(
    fit: Fit, step: float, value: float
) -> None:
    assert not fit(-value, -1.0, [step / 2, step], [value, value]).is_finite
