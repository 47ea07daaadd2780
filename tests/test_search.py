"""The feedback loop on functions of one variable."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cgq import Parabola, Search, least_squares, quadratic_search, two_point
from cgq.rules.parabola import Fit

Phi = Callable[[float], float]
SETTINGS = settings(deadline=None, derandomize=True)
FITS = [two_point, least_squares, functools.partial(least_squares, with_slope=False)]


class Counted:
    """A function of one variable that keeps the points it was measured at."""

    def __init__(self, phi: Phi) -> None:
        self.phi = phi
        self.points: list[float] = []

    def __call__(self, x: float) -> float:
        self.points.append(x)
        return self.phi(x)


def searched(
    phi: Phi,
    loss: float,
    slope: float,
    *,
    trial: float = 0.1,
    ceiling: float = 100.0,
    fit: Fit = two_point,
    max_fits: int = 3,
) -> Search:
    """The search's record, after checking what holds for every search."""
    counted = Counted(phi)
    found = quadratic_search(
        counted, loss, slope, trial=trial, ceiling=ceiling, fit=fit, max_fits=max_fits
    )
    points = counted.points
    assert len(set(points)) == len(points), f"measured twice: {points}"
    assert list(found.trial_steps) == points
    assert found.evaluations == len(points) <= 1 + max_fits
    assert points[0] == trial
    assert all(0.0 < x <= ceiling and math.isfinite(x) for x in points)
    values = [phi(x) for x in points]
    assert list(map(repr, found.trial_losses)) == list(map(repr, values))  # nan equals nan here
    assert (found.loss, found.slope) == (loss, slope)
    assert 0.0 <= found.step_size <= ceiling
    assert math.isfinite(found.step_size)
    assert found.capped == (found.step_size == ceiling)
    if found.step_size:
        assert found.step_size in points
        assert math.isfinite(phi(found.step_size))
    else:
        assert not found.accepted
        assert not any(math.isfinite(y) and y < loss for y in values)
    if found.accepted:
        assert phi(found.step_size) < loss
    return found


def algorithm_1(
    phi: Phi,
    loss: float,
    slope: float,
    gamma: float,
    ceiling: float,
    max_fits: int,
    steps: Sequence[float],
) -> float:
    """The paper's box, line by line, for a function that is positive and finite.

    A minimum near one of `steps` is taken to be that one: what two ways to round A make of it would
    grow from fit to fit. Where rounding decides on A itself there is nothing to compare.
    """
    for _ in range(max_fits):
        terms = phi(gamma), -loss, -slope * gamma
        assume(abs(sum(terms)) > 1e-9 * sum(map(abs, terms)))  # leaves A six digits
        a = sum(terms) / gamma / gamma  # gamma² may underflow
        if a <= 0:
            return gamma
        best = min(-slope / (2 * a), ceiling)
        near = min(steps, key=lambda step: abs(step - best))
        best = near if math.isclose(near, best, rel_tol=1e-5) else best
        if a * best**2 + slope * best + loss > 0 and phi(best) < loss:
            return best
        gamma = best
    return best


@dataclasses.dataclass(frozen=True)
class Landscape:
    """A sum of a parabola, waves and an exponential, with holes where it is not finite."""

    curvature: float
    tilt: float
    waves: Sequence[tuple[float, float, float]]
    growth: tuple[float, float]
    level: float
    holes: Sequence[tuple[float, float, float]]

    def smooth(self, x: float) -> float:
        waves = sum(h * math.cos(w * x + shift) for h, w, shift in self.waves)
        height, rate = self.growth
        bump = height * math.exp(min(rate * x, 700.0))
        return self.curvature * x * x - self.tilt * x + waves + bump + self.level

    @property
    def slope(self) -> float:
        waves = sum(-h * w * math.sin(shift) for h, w, shift in self.waves)
        return waves - self.tilt + self.growth[0] * self.growth[1]

    def __call__(self, x: float) -> float:
        for start, width, value in self.holes:
            if start <= x <= start + width:
                return value
        return self.smooth(x)


bad = st.sampled_from([math.nan, math.inf, -math.inf])
holes = st.tuples(st.floats(1e-3, 3.0), st.floats(0.0, 5.0) | st.just(math.inf), bad)
landscapes = st.builds(
    Landscape,
    curvature=st.floats(-2.0, 10.0),
    tilt=st.floats(0.0, 10.0),
    waves=st.lists(
        st.tuples(st.floats(0.0, 3.0), st.floats(0.1, 20.0), st.floats(0.0, 6.3)), max_size=3
    ),
    growth=st.tuples(st.floats(0.0, 2.0), st.floats(-5.0, 5.0)),
    level=st.floats(-20.0, 20.0),
    holes=st.lists(holes, max_size=2),
)
ceilings = st.sampled_from([0.3, 1.0, 3.0, 10.0, math.inf]) | st.floats(0.01, 100.0)
trials = st.sampled_from([0.1, 0.3, 1.0]) | st.floats(1e-3, 10.0)


@settings(SETTINGS, max_examples=1000)
@given(landscapes, ceilings, trials, st.sampled_from(FITS), st.integers(1, 6))
def test_invariants_on_random_landscapes(
    phi: Landscape, ceiling: float, trial: float, fit: Fit, max_fits: int
) -> None:
    assume(phi.slope < -1e-3)
    loss = phi.smooth(0.0)
    found = searched(
        phi,
        loss,
        phi.slope,
        trial=min(trial, ceiling),
        ceiling=ceiling,
        fit=fit,
        max_fits=max_fits,
    )
    if not found.step_size and fit is two_point:
        # Without holes a parabola through the slope always leads somewhere.
        assert any(not math.isfinite(y) for y in found.trial_losses)


@settings(SETTINGS, max_examples=500)
@given(landscapes, ceilings, trials, st.integers(1, 6))
def test_is_the_papers_algorithm_where_the_loss_is_positive_and_finite(
    phi: Landscape, ceiling: float, trial: float, max_fits: int
) -> None:
    phi = dataclasses.replace(phi, level=abs(phi.level) + 10.0, holes=[])  # above any waves
    assume(phi.slope < -1e-3)
    loss, trial = phi.smooth(0.0), min(trial, ceiling)
    found = searched(phi, loss, phi.slope, trial=trial, ceiling=ceiling, max_fits=max_fits)
    steps = found.trial_steps
    expected = algorithm_1(phi, loss, phi.slope, trial, ceiling, max_fits, steps)
    assert found.step_size == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    # Zero only where the fit is exact: these numbers are sums of powers of two.
    ("fit", "bend"),
    [(two_point, 0.0), (two_point, -1.0), (least_squares, -1.0)],
)
def test_no_upward_bend_takes_the_trial(fit: Fit, bend: float) -> None:
    found = searched(lambda x: 4.0 - x + bend * x * x, 4.0, -1.0, trial=0.5, fit=fit)
    assert found.trial_steps == (0.5,)
    assert found.step_size == 0.5
    assert found.accepted
    assert found.curvature == pytest.approx(2.0 * bend, rel=1e-12, abs=0.0)


def test_a_trial_taken_for_its_bend_is_accepted_only_if_lower() -> None:
    found = searched(lambda x: 1.0 + x, 1.0, -1.0, fit=lambda *data: Parabola(-1.0, -1.0, 1.0))
    assert found.step_size == 0.1
    assert not found.accepted


def test_a_parabola_is_minimised_with_two_evaluations() -> None:
    for fit in (two_point, least_squares):
        found = searched(lambda x: (x - 2.0) ** 2 + 1.0, 5.0, -4.0, fit=fit)
        assert found.step_size == pytest.approx(2.0, rel=1e-12)
        assert found.accepted
        assert not found.capped
        assert found.evaluations == 2
        assert found.curvature == pytest.approx(2.0, rel=1e-12)


def test_the_ceiling_caps_the_step() -> None:
    found = searched(lambda x: (x - 2.0) ** 2 + 1.0, 5.0, -4.0, ceiling=1.5)
    assert found.step_size == 1.5
    assert found.accepted
    assert found.capped


def test_a_trial_at_the_ceiling_is_measured_once() -> None:
    found = searched(lambda x: (x - 2.0) ** 2 + 1.0, 5.0, -4.0, trial=1.5, ceiling=1.5)
    assert found.trial_steps == (1.5,)
    assert found.step_size == 1.5
    assert found.accepted
    assert found.capped


def test_a_rejected_minimum_becomes_the_next_trial() -> None:
    """A steep wall behind a gentle slope: the first parabola, fitted before it, goes too far."""

    def phi(x: float) -> float:
        return 10.0 - x + 0.1 * x * x + math.exp(4.0 * (x - 3.0))

    loss, slope = phi(0.0), -1.0 + 4.0 * math.exp(-12.0)
    found = searched(phi, loss, slope)
    first = two_point(loss, slope, [0.1], [phi(0.1)]).minimiser
    second = two_point(loss, slope, [first], [phi(first)]).minimiser
    assert phi(first) > loss > phi(second)
    assert found.trial_steps == (0.1, first, second)
    assert found.step_size == second
    assert found.accepted
    # With one fit there is no second try: its minimum is taken as it is.
    last = searched(phi, loss, slope, max_fits=1)
    assert last.step_size == first
    assert not last.accepted


def test_a_parabola_below_zero_is_not_trusted() -> None:
    """φ(α*) < φ(0) alone is not enough where q promises a negative loss."""

    def phi(x: float) -> float:
        return math.exp(-x)

    q = two_point(1.0, -1.0, [5.0], [phi(5.0)])
    assert q.minimiser > 0.0
    assert q(q.minimiser) < 0.0 < phi(q.minimiser) < 1.0
    found = searched(phi, 1.0, -1.0, trial=5.0, max_fits=2)
    second = two_point(1.0, -1.0, [q.minimiser], [phi(q.minimiser)]).minimiser
    assert found.trial_steps == (5.0, q.minimiser, second)


@pytest.mark.parametrize("max_fits", [1, 2, 3, 7])
def test_after_the_last_fit_its_minimum_is_taken(max_fits: int) -> None:
    """Every fit puts its minimum a little further, and the function only rises."""
    minima = iter(range(1, 100))

    def fit(*data: object) -> Parabola:
        minimiser = float(next(minima))
        return Parabola(1.0, -2.0 * minimiser, 1e6)

    found = searched(lambda x: 1.0 + x, 1.0, -1.0, fit=fit, max_fits=max_fits)
    assert found.step_size == max_fits
    assert not found.accepted
    assert found.evaluations == 1 + max_fits


def test_a_fit_sees_every_finite_trial_once_and_the_newest_last() -> None:
    seen: list[list[float]] = []

    def fit(loss: float, slope: float, steps: Sequence[float], losses: Sequence[float]) -> Parabola:
        seen.append(list(steps))
        assert list(losses) == [phi(x) for x in steps]
        return two_point(loss, slope, steps, losses)

    def phi(x: float) -> float:
        return math.nan if x == 0.5 else 10.0 - x + 0.1 * x * x + math.exp(4.0 * (x - 3.0))

    loss, slope = phi(0.0), -1.0 + 4.0 * math.exp(-12.0)
    found = searched(phi, loss, slope, trial=0.5, fit=fit, max_fits=5)
    finite = [x for x in found.trial_steps if x != 0.5]
    assert len(seen) >= 2
    assert seen == [finite[: k + 1] for k in range(len(seen))]


def test_backing_off_to_an_older_trial_makes_it_the_newest() -> None:
    """0.1 → 0.5, rejected → 1.0, not finite → back to 0.1, through which two_point must now go."""
    minima = iter([0.5, 1.0, 0.2])
    seen: list[list[float]] = []

    def fit(loss: float, slope: float, steps: Sequence[float], losses: object) -> Parabola:
        seen.append(list(steps))
        return Parabola(1.0, -2.0 * next(minima), 1e6)

    def phi(x: float) -> float:
        return math.nan if x == 1.0 else 1.0 + x

    found = searched(phi, 1.0, -1.0, fit=fit, max_fits=4)
    assert seen == [[0.1], [0.1, 0.5], [0.5, 0.1]]
    assert found.trial_steps == (0.1, 0.5, 1.0, 0.2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_trial_that_is_not_finite_is_rejected_and_the_search_backs_off(value: float) -> None:
    def phi(x: float) -> float:
        return value if x > 0.4 else (x - 0.3) ** 2 + 1.0

    found = searched(phi, 1.09, -0.6, trial=10.0, max_fits=4)
    assert found.step_size == pytest.approx(0.3, rel=1e-9)
    assert found.accepted
    assert list(found.trial_steps[:3]) == pytest.approx([10.0, 1.0, 0.1])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_minimum_that_is_not_finite_leaves_the_best_trial(value: float) -> None:
    """Ceiling 1 and first trial 0.1 are the defaults for lr=1: backing off leads back to 0.1."""

    def phi(x: float) -> float:
        return value if x > 0.15 else 5.0 - x

    found = searched(phi, 5.0, -1.0, ceiling=1.0, fit=lambda *data: Parabola(1e-3, -1.0, 5.0))
    assert found.step_size == 0.1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("max_fits", [1, 3, 400])
def test_no_finite_trial_means_no_step(value: float, fit: Fit, max_fits: int) -> None:
    """Also where backing off reaches the end of the floats."""
    found = searched(lambda x: value, 1.0, -1.0, fit=fit, max_fits=max_fits)
    assert found.step_size == 0.0
    assert not found.accepted


@pytest.mark.parametrize(("rise", "step"), [(1.0, 0.0), (0.0, 0.0), (-1.0, 0.01)])
def test_what_remains_after_backing_off_must_be_lower(rise: float, step: float) -> None:
    """The one finite trial was never fitted: only its loss can speak for it."""

    def phi(x: float) -> float:
        return math.nan if x > 0.05 else 1.0 + rise * x

    found = searched(phi, 1.0, -1.0, max_fits=1)
    assert found.step_size == pytest.approx(step)
    assert not found.accepted


@pytest.mark.parametrize("least", [-7.0, -0.5])
@pytest.mark.parametrize("fit", [two_point, least_squares])
def test_negative_losses_are_accepted(least: float, fit: Fit) -> None:
    """q(α*) > 0 is asked for only where the loss has not shown that it can be negative."""
    found = searched(lambda x: 0.5 * (x - 1.0) ** 2 + least, 0.5 + least, -1.0, fit=fit)
    assert found.loss <= 0.0
    assert found.step_size == pytest.approx(1.0, rel=1e-9)
    assert found.accepted
    assert found.evaluations == 2


def test_the_record_is_frozen() -> None:
    found = searched(lambda x: (x - 2.0) ** 2, 4.0, -4.0)
    for field in dataclasses.fields(found):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(found, field.name, 0.0)
