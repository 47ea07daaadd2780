"""The numbers one step hands to the next, and where a run keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor

from cgq.policy import TrialDecay
from cgq.scalars import Number
from cgq.search import Search

# In the parameter groups: the one place that state_dict, pickle and distributed checkpoints all
# keep. The same in every group, but for step_size.
DEFAULTS: dict[str, float | int] = {
    "step_size": 0.0,
    "beta": 0.0,
    "average": 0.0,
    "reach": 0.0,
    "steps": 0,
    "skipped": 0,
    "rejected_fits": 0,
    "trial_scale": 1.0,
    "trial_total": 0.0,
    "trial_searches": 0,
}


class Progress(NamedTuple):
    """How far a run has come."""

    step_size: Number  # α along the line
    beta: Number
    average: float  # of found steps, or of their shares of the ceiling; 0.0: none yet
    decay: TrialDecay
    reach: Number  # at least |p|, for numbers that could leave the range of their dtype

    @classmethod
    def of(cls, group: dict[str, Any]) -> Progress:
        """What `group` says."""
        decay = TrialDecay(group["trial_scale"], group["trial_total"], group["trial_searches"])
        return cls(group["step_size"], group["beta"], group["average"], decay, group["reach"])

    def write(self, group: dict[str, Any], ratio: float) -> None:
        """Put into `group` what a step of it, which used `ratio` of the line's α, has come to."""
        group["step_size"] = self.step_size * ratio
        group["beta"] = self.beta
        group["average"] = self.average
        group["reach"] = self.reach
        group["steps"] = group["steps"] + 1
        group["trial_scale"], group["trial_total"], group["trial_searches"] = self.decay


def read(group: dict[str, Any], names: Iterable[str]) -> dict[str, float | int]:
    """These numbers of `group`, read off the device where one was left there."""
    values = {name: group[name] for name in names}
    return {
        name: value.item() if isinstance(value, Tensor) else value for name, value in values.items()
    }


def count_skipped(group: dict[str, Any], skipped: bool | Tensor) -> None:
    """Count a step left out; a tensor where the host has not looked."""
    group["skipped"] = group["skipped"] + skipped


def count_rejected(group: dict[str, Any], search: Search | None) -> None:
    """Count a parabola that was not believed."""
    group["rejected_fits"] += search is not None and search.rejected
