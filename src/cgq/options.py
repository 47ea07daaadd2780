"""The settings of CGQ that hold for the whole line, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from cgq.momentum import Rule
from cgq.parabola import Fit


@dataclass(frozen=True)
class Options:
    """One line runs through all parameter groups, so these are one for all groups."""

    max_relative_step: float | None
    momentum: Rule | float
    max_momentum: float
    nesterov: bool
    decoupled_weight_decay: bool
    fit: Fit
    max_fits: int
    probe: float | None
    search_prob: float
    smoothing: float
    seed: int
    maximize: bool

    @property
    def shrinks_trial(self) -> bool:
        """Whether the first trial is one that shrinks, and not the relative ceiling."""
        return self.max_relative_step is None or self.probe is not None

    def __post_init__(self) -> None:
        rho, momentum, probe = self.max_relative_step, self.momentum, self.probe
        _require(
            rho is None or 0.0 < rho < math.inf,
            f"Invalid max_relative_step value: {rho}. Use None or a positive number such as 0.005.",
        )
        _require(
            callable(momentum) or (isinstance(momentum, (int, float)) and 0 <= momentum < math.inf),
            f"Invalid momentum value: {momentum}. Use a rule such as cgq.polak_ribiere, or a "
            "number of 0 or more.",
        )
        _require(
            self.max_momentum >= 0.0,
            f"Invalid max_momentum value: {self.max_momentum}. Use 0 or more.",
        )
        _require(callable(self.fit), f"Invalid fit: {self.fit!r}. Use a function: cgq.two_point.")
        _require(
            isinstance(self.max_fits, int) and self.max_fits >= 1,
            f"Invalid max_fits value: {self.max_fits}. Use a whole number of 1 or more.",
        )
        _require(
            probe is None or 0.0 < probe < math.inf,
            f"Invalid probe value: {probe}. Use None or the length of the first trial step.",
        )
        _require(
            0.0 <= self.search_prob <= 1.0,
            f"Invalid search_prob value: {self.search_prob}. Use a probability from 0 to 1.",
        )
        _require(
            0.0 <= self.smoothing < 1.0,
            f"Invalid smoothing value: {self.smoothing}. Use 0 (none) or a share below 1.",
        )
        _require(isinstance(self.seed, int), f"Invalid seed: {self.seed!r}. Use a whole number.")


def own_settings(param_group: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    """A group without what holds for the whole line, its own numbers checked."""
    if not isinstance(param_group, dict):
        raise TypeError(f"A parameter group must be a dict with 'params', not {param_group!r}.")
    shared = line_wide(param_group)
    own = {name: value for name, value in param_group.items() if name not in shared}
    mine = defaults | own
    return own | checked_group(mine["lr"], mine["weight_decay"])


LINE_WIDE = frozenset(field.name for field in fields(Options))


def line_wide(param_group: dict[str, Any]) -> dict[str, Any]:
    """Those of a group's entries that hold for the whole line."""
    return {name: value for name, value in param_group.items() if name in LINE_WIDE}


def refuse_strays(groups: list[dict[str, Any]]) -> None:
    """Refuse options of the whole line that someone has written into a group since."""
    for group in groups:
        if not LINE_WIDE.isdisjoint(group):
            names = ", ".join(sorted(LINE_WIDE & group.keys()))
            raise ValueError(
                f"A parameter group holds {names}, which the optimizer would not look at: one line "
                "runs through all groups. Give it when the optimizer is made; in skorch, call "
                "initialize() after set_params()."
            )


def in_one_voice(options: Options, said: dict[str, Any], new: dict[str, Any]) -> Options:
    """The options with what one more group says, unless groups before it `said` otherwise."""
    for name, value in new.items():
        if said.get(name, value) != value:
            raise ValueError(
                f"{name} is {said[name]!r} in one parameter group and {value!r} "
                "in another, but one line runs through all groups. Set it once, for all."
            )
    return replace(options, **new)


def checked_group(lr: float | Tensor, weight_decay: float) -> dict[str, float | Tensor]:
    """What each parameter group sets for itself, as plain numbers that any checkpoint can hold."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    _require(
        float(lr) >= 0.0,
        f"Invalid learning rate: {lr}. lr is the ceiling of the step: use 0 or more.",
    )
    _require(
        0.0 <= weight_decay < math.inf,
        f"Invalid weight_decay value: {weight_decay}. Use 0 or more.",
    )
    return {
        "lr": lr if isinstance(lr, Tensor) else float(lr),
        "weight_decay": float(weight_decay),
    }


def check_length(max_relative_step: float | None, full_steps: float) -> None:
    """Raise where `LineSearch`, which knows no other ceiling, is told no length of a step."""
    _require(
        max_relative_step is not None and 0.0 < max_relative_step < math.inf,
        f"Invalid max_relative_step value: {max_relative_step}. Use a positive number such as "
        "0.005: a step of LineSearch is measured by the weights alone.",
    )
    _require(full_steps > 0, f"Invalid full_steps value: {full_steps}. Use a number such as 1000.")


def _require(valid: bool, message: str) -> None:
    if not valid:
        raise ValueError(message)
