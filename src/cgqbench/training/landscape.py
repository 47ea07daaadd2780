"""The loss along the line of a search, for the figure that shows it with its parabolas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from cgq import CGQ, Parabola, Search, least_squares, two_point
from cgq.evaluation import Environment
from cgqbench.records.record import Line
from cgqbench.training.meter import finite


@dataclass(frozen=True)
class Landscape:
    """φ(α) on a grid, and what the search saw and chose. None: not finite, or no such parabola."""

    loss: float
    slope: float
    grid: list[float]
    losses: list[float | None]
    trial_steps: list[float]
    trial_losses: list[float | None]
    step_size: float
    accepted: bool
    capped: bool
    ceiling: float | None
    two_point: list[float] | None
    """[a, b, c] of the parabola through the first trial."""
    least_squares: list[float] | None
    """[a, b, c] of the parabola nearest to all the trials."""

    def as_line(self, *, step: int, epoch: int) -> Line:
        """A line of a landscape file."""
        return {"kind": "landscape", "step": step, "epoch": epoch, **asdict(self)}


def landscape(
    model: nn.Module,
    optimizer: CGQ,
    closure: Callable[[bool], Tensor],
    *,
    points: int = 41,
    stretch: float = 2.0,
) -> Landscape | None:
    """Take one step of the optimizer, then measure φ(α) = loss(θ + α·p) along its line.

    The grid has `points` values from 0 to `stretch` times the longest trial. Each is measured as
    the search measured its trials: on the same mini-batch, with the same dropout masks. When it
    is done, everything is as after the step alone. None: there was no search, or none of its
    trials could be taken, so that the step does not show which way p points.

    `closure(backward)` returns the loss, and runs backward() when asked. With decay of either kind
    p is what the search followed: decay included, for θ + α·p is straight in both.

    >>> model = nn.Linear(3, 1)
    >>> inputs, targets = torch.randn(8, 3), torch.randn(8, 1)
    >>> optimizer = CGQ(model.parameters(), lr=10.0)
    >>> def closure(backward: bool = True) -> Tensor:
    ...     loss = nn.functional.mse_loss(model(inputs), targets)
    ...     if backward:
    ...         loss.backward()
    ...     return loss
    >>> seen = landscape(model, optimizer, closure, points=5)
    >>> len(seen.losses), seen.losses[0] == seen.loss
    (5, True)
    """
    if points < 2 or not stretch > 0.0:
        raise ValueError(f"A grid needs 2 points and a length, not {points} and {stretch}.")
    params = [param for group in optimizer.param_groups for param in group["params"]]
    start = [param.detach().clone() for param in params]
    environment = Environment(model)
    with environment.first_pass():
        optimizer.step(closure)
    search = optimizer.last_search
    if search is None or not search.step_size:
        return None
    length = stretch * max(search.trial_steps)
    grid = [length * (point / (points - 1)) for point in range(points)]
    applied = _applied(optimizer)
    losses = _losses(closure, params, start, [alpha / applied for alpha in grid], environment)
    usable = [
        trial
        for trial in zip(search.trial_steps, search.trial_losses, strict=True)
        if math.isfinite(trial[1])
    ]
    first = [trial for trial in usable if trial[0] == search.trial_steps[0]]
    return Landscape(
        loss=search.loss,
        slope=search.slope,
        grid=grid,
        losses=losses,
        trial_steps=list(search.trial_steps),
        trial_losses=[finite(loss) for loss in search.trial_losses],
        step_size=search.step_size,
        accepted=search.accepted,
        capped=search.capped,
        ceiling=finite(_ceiling(optimizer)),
        two_point=_coefficients(two_point, search, first),
        least_squares=_coefficients(least_squares, search, usable),
    )


@torch.no_grad()
def _losses(
    closure: Callable[[bool], Tensor],
    params: Sequence[Tensor],
    start: Sequence[Tensor],
    shares: Sequence[float],
    environment: Environment,
) -> list[float | None]:
    """The loss at each share of the way from `start` to where the parameters are now."""
    end = [param.detach().clone() for param in params]
    grads = [param.grad for param in params]
    environment.mark()
    losses = []
    try:
        for share in shares:
            for param, old, new in zip(params, start, end, strict=True):
                param.copy_(torch.lerp(old, new, share))
                param.grad = None  # out of reach of a closure that zeroes gradients
            environment.rewind()
            torch.clear_autocast_cache()
            losses.append(finite(float(closure(False))))
    finally:
        for param, new, grad in zip(params, end, grads, strict=True):
            param.copy_(new)
            param.grad = grad
        environment.resume()
    return losses


def _applied(optimizer: CGQ) -> float:
    """The α of the last step. Groups with a smaller `lr` took, and tell, a part of it."""
    return max(float(group["step_size"]) for group in optimizer.param_groups)


def _ceiling(optimizer: CGQ) -> float:
    """The ceiling of the last search; a relative one follows from the step's share of it."""
    if optimizer.options.max_relative_step is None:
        return max(float(group["lr"]) for group in optimizer.param_groups)
    return _applied(optimizer) / float(optimizer.param_groups[0]["average"])


def _coefficients(
    fit: Callable[[float, float, list[float], list[float]], Parabola],
    search: Search,
    trials: Sequence[tuple[float, float]],
) -> list[float] | None:
    if not trials:
        return None
    steps, losses = map(list, zip(*trials, strict=True))
    q = fit(search.loss, search.slope, steps, losses)
    return list(q) if q.is_finite else None
