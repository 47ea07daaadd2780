"""An optimizer that is copied or pickled says that its process group stays behind."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cgq import CGQ, LineSearch
from cgq.engine.messages import COPIED

MAKES: dict[str, Callable[[Any], Any]] = {
    "CGQ": lambda group: CGQ([nn.Parameter(torch.ones(3))], process_group=group),
    "LineSearch": lambda group: LineSearch(
        torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1), process_group=group
    ),
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
}
EVERY_KIND = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
EVERY_COPY = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


class Group:
    """Stands for a torch.distributed.ProcessGroup; nothing is asked of it where none is running."""

    def __reduce__(self) -> Any:
        raise TypeError("a process group cannot be pickled")


@EVERY_COPY
@EVERY_KIND
def test_a_copy_says_once_that_it_has_no_group(make: Any, copied: Any) -> None:
    group = Group()
    optimizer = make(group)
    with pytest.warns(UserWarning, match="does not hold its process_group") as told:
        other = copied(optimizer)
    assert [str(warning.message) for warning in told] == [COPIED]
    assert told[0].filename == __file__
    assert optimizer.process_group is group
    assert other.process_group is None
    copied(optimizer)  # nothing more is said: warnings are errors here


@EVERY_COPY
@EVERY_KIND
def test_the_copy_can_be_given_the_group(make: Any, copied: Any) -> None:
    group = Group()
    with pytest.warns(UserWarning, match="does not hold its process_group"):
        other = copied(make(group))
    other.process_group = group
    assert other.process_group is group
    (weight,) = other.param_groups[0]["params"]
    other.step(lambda: weight.square().sum())
    assert (weight < 1.0).all()
    with pytest.warns(UserWarning, match="does not hold its process_group"):
        copied(other)  # which is an optimizer of its own


@EVERY_COPY
@EVERY_KIND
def test_without_a_group_nothing_is_said(make: Any, copied: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert copied(make(None)).process_group is None


@EVERY_KIND
def test_saving_the_state_says_nothing(make: Any) -> None:
    optimizer = make(Group())
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.process_group is not None
