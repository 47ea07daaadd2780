"""A slow, obvious twin of CGQ: one vector, no buffers, every formula written out as in the paper.

It shares no code with the optimizer but the coin, whose draws both must agree on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy
import torch
from torch import Tensor

from cgq.rules.when_to_search import coin


def fit_two_points(loss: float, slope: float, xs: list[float], ys: list[float]) -> list[float]:
    x, y = xs[-1], ys[-1]
    return [(y - loss - slope * x) / x**2, slope, loss]


def fit_least_squares(loss: float, slope: float, xs: list[float], ys: list[float]) -> list[float]:
    rows = [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]] + [[x**2, x, 1.0] for x in xs]
    return list(numpy.linalg.pinv(numpy.array(rows)) @ numpy.array([slope, loss, *ys]))


def fit_without_slope(loss: float, slope: float, xs: list[float], ys: list[float]) -> list[float]:
    rows = [[0.0, 0.0, 1.0]] + [[x**2, x, 1.0] for x in xs]
    scale = numpy.array([max(xs) ** 2, max(xs), 1.0])  # the minimal norm depends on the unit
    return list(numpy.linalg.pinv(numpy.array(rows) / scale) @ numpy.array([loss, *ys]) / scale)


def polak_ribiere(g: Tensor, h: Tensor, p: Tensor) -> float:
    return float(g.dot(g - h) / h.dot(h))


def fletcher_reeves(g: Tensor, h: Tensor, p: Tensor) -> float:
    return float(g.dot(g) / h.dot(h))


def hestenes_stiefel(g: Tensor, h: Tensor, p: Tensor) -> float:
    return float(g.dot(g - h) / p.dot(g - h))


def dai_yuan(g: Tensor, h: Tensor, p: Tensor) -> float:
    return float(g.dot(g) / p.dot(g - h))


def means(values: list[float], rate: float) -> list[float]:
    """The mean up to each value: plain at first, then moving."""
    found: list[float] = []
    for count, value in enumerate(values, 1):
        weight = max(rate, 1 / count)
        found.append(weight * value + (1 - weight) * (found[-1] if found else 0.0))
    return found


@dataclass
class Twin:
    """`lr` and `weight_decay` are given element by element, as the groups of CGQ set them."""

    theta: Tensor
    lr: Tensor
    weight_decay: Tensor
    max_relative_step: float | None = None
    momentum: Callable[[Tensor, Tensor, Tensor], float] | float = polak_ribiere
    max_momentum: float = 0.8
    nesterov: bool = False
    decoupled_weight_decay: bool = False
    fit: Callable[[float, float, list[float], list[float]], list[float]] = fit_two_points
    max_fits: int = 3
    probe: float | None = None
    search_prob: float = 1.0
    smoothing: float = 0.0
    seed: int = 0
    maximize: bool = False
    p: Tensor = field(init=False)
    h: Tensor = field(init=False)
    beta: float = 0.0
    step_size: float = 0.0
    average: float | None = None
    trial_scale: float = 1.0
    recent: list[float] = field(default_factory=list)
    steps: int = 0
    searched_last: bool = False
    alert: bool = True
    earned: float = 0.001
    losses: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.p = torch.zeros_like(self.theta)
        self.h = torch.zeros_like(self.theta)

    def step(self, f: Callable[[Tensor], Tensor] | None, gradient: Tensor | None = None) -> None:
        """One step on the loss f, or with the gradient alone."""
        sign = -1.0 if self.maximize else 1.0
        theta0 = self.theta.clone()
        if f is not None:
            theta = theta0.clone().requires_grad_()
            gradient = torch.autograd.grad(f(theta), theta)[0]
        assert gradient is not None
        pure = sign * gradient
        coupled = 0.0 if self.decoupled_weight_decay else self.weight_decay
        decoupled = self.weight_decay if self.decoupled_weight_decay else 0.0
        ratio = self.lr / self.lr.max()

        g = pure + coupled * theta0
        if callable(self.momentum):
            found = self.momentum(g, self.h, self.p)
            found = min(max(0.0, found), self.max_momentum) if numpy.isfinite(found) else 0.0
            beta = self.smoothing * self.beta + (1 - self.smoothing) * found
        else:
            beta = self.momentum

        def directions(beta: float) -> tuple[Tensor, Tensor, Tensor]:
            """The momentum vector, the direction and the whole displacement per unit of α."""
            v = -g + beta * self.p
            d = ratio * (-g + beta * v if self.nesterov else v)
            return v, d, d - ratio * decoupled * theta0

        searches = f is not None and (
            self.average is None
            or (self.max_relative_step is not None and self.search_prob > 0 and self.alert)
            or coin(self.seed, self.steps, self.search_prob)
        )
        rho = self.max_relative_step
        if rho is not None and f is not None and 0 < self.search_prob < 1:
            rho = min(rho, self.earned)
        if f is not None:
            self.losses.append(sign * float(f(theta0)))
        v, d, line = directions(beta)
        slope = float(pure.dot(line))
        if searches and slope >= 0:
            beta = 0.0
            v, d, line = directions(beta)
            slope = float(pure.dot(line))

        ceiling = float(self.lr.max())
        if rho is not None:
            ceiling = min(ceiling, rho * float(theta0.norm() / d.norm()))
            if (ratio * decoupled).max() > 0:
                ceiling = min(ceiling, 1.0 / float((ratio * decoupled).max()))

        self.searched_last = searches and slope < 0
        if self.searched_last:
            assert f is not None
            alpha = self._search(lambda a: sign * float(f(theta0 + a * line)), slope, ceiling)
        elif self.max_relative_step is not None:
            alpha = (1.0 if self.average is None else self.average) * ceiling
        elif self.average is None:
            alpha = self._first_trial(ceiling)
        else:
            alpha = min(self.average, ceiling)

        self.theta = theta0 + alpha * line
        self.p, self.h, self.beta, self.step_size = v, g, beta, alpha
        self.steps += 1

    def _first_trial(self, ceiling: float) -> float:
        return min(0.1, ceiling / 3) if self.probe is None else min(self.probe, ceiling)

    def _search(self, phi: Callable[[float], float], slope: float, ceiling: float) -> float:
        whole = self.max_relative_step is not None and self.probe is None
        gamma = first = ceiling if whole else self._first_trial(ceiling) * self.trial_scale
        loss = phi(0.0)
        if not whole and loss > 0 and loss + gamma * slope < -loss:
            gamma = 2 * loss / -slope
        xs, ys, alpha = [gamma], [phi(gamma)], 0.0
        for _ in range(self.max_fits):
            a, b, c = self.fit(loss, slope, xs, ys)
            if a <= 0:
                alpha = gamma
                break
            if -b / (2 * a) <= 0:  # possible without the slope row: no minimum ahead
                gamma = 0.1 * gamma
            else:
                alpha = gamma = min(-b / (2 * a), ceiling)
                accepted = a * alpha**2 + b * alpha + c > 0 or loss <= 0
                if accepted and phi(alpha) < loss:
                    break
            if gamma in xs:
                break
            xs.append(gamma)
            ys.append(phi(gamma))

        unit = ceiling if self.max_relative_step is not None else 1.0
        old = self.average
        found = alpha / unit
        self.average = found if old is None else self.smoothing * old + (1 - self.smoothing) * found
        if not whole:
            self.recent.append(alpha)
            if len(self.recent) == 20:
                if first > sum(self.recent) / 20:
                    self.trial_scale *= 0.8
                self.recent = []
        self.shares.append(self.average)
        self.alert, self.earned = self._is_alarming(), self._earned()
        return min(self.average * unit, ceiling)

    def _earned(self) -> float:
        waited = max(0.001, len(self.losses) / 500_000)
        if len(self.losses) < 30:
            return waited
        plateau, recent = sum(self.losses[15:30]) / 15, means(self.losses, 0.1)[-1]
        return max(waited, 0.05 * (plateau - recent) / abs(plateau))

    def _is_alarming(self) -> bool:
        recent, usual = (means(self.shares, rate)[-1] for rate in (1 / 8, 1 / 32))
        if len(self.shares) < 100 or abs(recent - usual) > usual / 3:
            return True
        recent_losses = means(self.losses, 0.1)
        pairs = zip(self.losses, recent_losses, strict=True)
        variance = means([(loss - mean) ** 2 for loss, mean in pairs], 0.05)[-1]
        return recent_losses[-1] - means(self.losses, 0.01)[-1] > variance**0.5
