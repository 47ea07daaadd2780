"""The settings that hold for the whole line, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Real
from typing import Any

from torch import Tensor

from cgq.rules.momentum import Rule, polak_ribiere
from cgq.rules.parabola import Fit, two_point
from cgq.rules.quadratic_search import QuadraticSearch
from cgq.rules.search import SearchRule
from cgq.rules.trust import Trust

Group = dict[str, Any]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and float(value) >= 0.0


def _is_finite(value: Any) -> bool:
    return _is_number(value) and value < math.inf


def _is_positive(value: Any) -> bool:
    return value is None or (_is_finite(value) and value > 0.0)


def _is_switch(value: Any) -> bool:
    return not isinstance(value, str) and value in (True, False)


SWITCH = _is_switch, "Use True or False."


CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_relative_step": (_is_positive, "Use None or a positive number such as 0.005."),
    "fit": (callable, "Use a function: cgq.two_point."),
    "max_fits": (lambda n: isinstance(n, int) and n >= 1, "Use a whole number of 1 or more."),
    "search": (lambda s: s is None or callable(s), "Use a function like cgq.QuadraticSearch()."),
    "search_prob": (lambda p: _is_number(p) and p <= 1.0, "Use a probability from 0 to 1."),
    "smoothing": (lambda s: _is_number(s) and s < 1.0, "Use 0 (none) or a share below 1."),
    "seed": (lambda n: isinstance(n, int), "Use a whole number."),
    "momentum": (
        lambda beta: callable(beta) or _is_finite(beta),
        "Use a rule such as cgq.polak_ribiere, or a number of 0 or more.",
    ),
    "max_momentum": (_is_number, "Use 0 or more."),
    "probe": (_is_positive, "Use None or the length of the first trial step."),
    **dict.fromkeys(("nesterov", "decoupled_weight_decay", "maximize", "watched"), SWITCH),
}


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How an optimizer searches. One line runs through all groups, so these are one for all."""

    max_relative_step: float | None = None
    fit: Fit = two_point
    max_fits: int = 3
    search: SearchRule | None = None
    search_prob: float = 1.0
    smoothing: float = 0.0
    seed: int = 0
    descent_suffices: bool = False

    def __post_init__(self) -> None:
        for name, (valid, cure) in CHECKS.items():
            if hasattr(self, name):
                value = getattr(self, name)
                require(name, value, valid(value), cure)

    @cached_property
    def rule(self) -> SearchRule:
        """The search: the one given, or the paper's."""
        return self.search or QuadraticSearch(self.fit, self.max_fits, self.descent_suffices)

    @cached_property
    def needs_length(self) -> bool:
        """Whether the search asks for |d|²."""
        return getattr(self.rule, "needs_length", False)

    @cached_property
    def any_slope(self) -> bool:
        """Whether the search is asked even where the direction climbs."""
        return getattr(self.rule, "any_slope", False)

    @cached_property
    def memory(self) -> dict[str, float]:
        """First values of the numbers that the search keeps."""
        return dict(getattr(self.rule, "memory", {}))

    @cached_property
    def searches_as_the_paper(self) -> bool:
        """Whether the search is not one of somebody else's."""
        return isinstance(self.rule, QuadraticSearch)

    @cached_property
    def begins_with_two_point(self) -> bool:
        """Whether a device can make the search's first fit by itself."""
        return getattr(self.rule, "begins_with_two_point", False)

    @cached_property
    def shrinks_trial(self) -> bool:
        """Whether the first trial is one that shrinks, and not the relative ceiling."""
        return False

    def tolerance(self, before: Mapping[str, Any], promised: float) -> float:
        """Which rise of the loss is none, by the numbers that the last step left.

        Half the noise of batches, but no more than what the trial's slope has `promised`: the noise
        counts a lone high loss for long.
        """
        return min(Trust.of(before).batch_noise / 2.0, promised) if self.is_guarded else 0.0

    @cached_property
    def is_watched(self) -> bool:
        """Whether a batch whose loss is too high is searched although it was not due."""
        return False

    @cached_property
    def is_guarded(self) -> bool:
        """Whether a relative ceiling is earned, and loss and share may ask for more searches."""
        return self.max_relative_step is not None and 0.0 < self.search_prob < 1.0


@dataclass(frozen=True, kw_only=True)
class ConjugateOptions(SearchOptions):
    """Those, and how CGQ's direction is made."""

    momentum: Rule | float = polak_ribiere
    max_momentum: float = 0.8
    nesterov: bool = False
    decoupled_weight_decay: bool = False
    probe: float | None = None
    maximize: bool = False
    watched: bool = True
    """Whether batches whose loss is too high are searched, whatever the coin says."""

    @cached_property
    def is_watched(self) -> bool:
        partly = 0.0 < self.search_prob < 1.0
        return self.watched and partly and self.max_relative_step is None

    @cached_property
    def shrinks_trial(self) -> bool:
        return self.max_relative_step is None or self.probe is not None


LINE_WIDE = frozenset(field.name for field in fields(ConjugateOptions))
# What groups hold besides settings and numbers: torch's, its schedulers' and LineSearch's.
OF_GROUPS = {"params", "initial_lr", "full_lr"}
# Each of torch's optimizers has one of these, CGQ has none.
OTHERS_SETTINGS = {"betas", "eps", "foreach", "max_iter"}


def line_wide(param_group: Group) -> Group:
    """Those of a group's entries that hold for the whole line."""
    return {name: value for name, value in param_group.items() if name in LINE_WIDE}


def own_settings(param_group: Any, defaults: Group) -> Group:
    """A group without what holds for the whole line, its own numbers checked."""
    if not isinstance(param_group, dict):
        raise TypeError(f"A parameter group must be a dict with 'params', not {param_group!r}.")
    own = {name: value for name, value in param_group.items() if name not in LINE_WIDE}
    mine = defaults | own
    return own | checked_group(mine["lr"], mine["weight_decay"])


def refuse_strays(groups: list[Group], options: Set[str] = LINE_WIDE) -> None:
    """Refuse options of the whole line that someone has written into a group since."""
    for group in groups:
        if not options.isdisjoint(group):
            names = ", ".join(sorted(options & group.keys()))
            raise ValueError(
                f"A parameter group holds {names}, which the optimizer would not look at: one line "
                "runs through all groups. Give it when the optimizer is made; in skorch, call "
                "initialize() after set_params()."
            )


def refuse_foreign(groups: list[Group]) -> None:
    """Refuse the state of another optimizer: its groups hold settings, and no step was found."""
    for group in groups:
        if names := OTHERS_SETTINGS & group.keys():
            raise ValueError(
                f"This is another optimizer's state (its groups hold {', '.join(sorted(names))}): "
                "CGQ has nothing to take from it. Load the model's weights alone and let CGQ begin "
                "anew. A LineSearch around that optimizer would go on from it."
            )


def with_group(options: ConjugateOptions, said: Group, new: Group) -> ConjugateOptions:
    """The options with what one more group says, unless groups before it `said` otherwise."""
    for name, value in new.items():
        if said.get(name, value) != value:
            raise ValueError(
                f"{name} is {said[name]!r} in one parameter group and {value!r} "
                "in another, but one line runs through all groups. Set it once, for all."
            )
    return replace(options, **new)


def checked_group(lr: float | Tensor, weight_decay: float) -> Group:
    """What each parameter group sets for itself, as plain numbers that any checkpoint can hold."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not (isinstance(lr, Tensor) or _is_number(lr)) or not float(lr) >= 0.0:
        raise ValueError(
            f"Invalid learning rate: {lr}. lr is the ceiling of the step: use 0 or more."
        )
    require("weight_decay", weight_decay, _is_finite(weight_decay), "Use 0 or more.")
    ceiling = lr if isinstance(lr, Tensor) else float(lr)
    return {"lr": ceiling, "weight_decay": float(weight_decay)}


def refuse_taken(memory: Collection[str], taken: Collection[str]) -> None:
    """Refuse a search that would keep a number where a group has one of another meaning."""
    if names := sorted({*memory} & ({*taken} | OF_GROUPS)):
        raise ValueError(
            f"The search keeps {', '.join(names)}, but parameter groups hold a number of that name "
            "already. Give it another name, such as search_level, in the search's `memory`."
        )


def require(name: str, value: object, valid: bool, cure: str) -> None:
    """Raise a `ValueError` that names a setting and its cure, unless it is valid."""
    if not valid:
        raise ValueError(f"Invalid {name} value: {value}. {cure}")
