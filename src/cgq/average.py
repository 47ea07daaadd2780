"""Averaging of the weights in place of a learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from cgq.rules.scalars import is_host, scalar_dtype
from cgq.vectors.side_by_side import join, whole

# torch annotates the callback's arguments as tuple-or-list; any sequence of tensors will do.
MultiAverage = Callable[[Any, Any, Any], None]
Slots = list[tuple[Any, str]]
"""Where modules hold their tensors: a tensor may be replaced, as by `model.to`, its place stays."""

PLAIN = {Tensor, nn.Parameter}  # tensors that lie in memory of their own


def anytime_average(eta: float = 8.0) -> MultiAverage:
    """A `multi_avg_fn` for torch's `AveragedModel` that needs no horizon.

    After the t-th step: mean ← mean + (η+1)/(t+η)·(θ - mean). The window is always about the last
    1/(η+1) of the run, wherever the run stops; η = 0 is the plain mean of all steps.

    >>> from torch.optim.swa_utils import AveragedModel
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> averaged = AveragedModel(model, multi_avg_fn=anytime_average(eta=0))
    >>> for value in (1.0, 2.0, 6.0):
    ...     _ = torch.nn.init.constant_(model.weight, value)
    ...     averaged.update_parameters(model)
    >>> round(averaged.module.weight.item(), 6)
    3.0
    """
    if not 0.0 <= eta < math.inf:
        raise ValueError(f"Invalid eta: {eta}. It must be 0 (plain mean) or more.")

    @torch.no_grad()
    def update(mean: Sequence[Tensor], current: Sequence[Tensor], num_averaged: Tensor) -> None:
        means, currents = list(mean), list(current)
        if not (means[0].is_floating_point() or means[0].is_complex()):
            torch._foreach_copy_(means, currents)  # counters among the buffers
            return
        # AveragedModel copies the first step itself, so this call sees step num_averaged + 1.
        if is_host(num_averaged.device):
            torch._foreach_lerp_(means, currents, (eta + 1.0) / (num_averaged.item() + 1.0 + eta))
        else:  # a tensor of one number, so that the host need not read it
            t = num_averaged.to(scalar_dtype(num_averaged.device)) + 1.0
            change = torch._foreach_sub(currents, means)
            torch._foreach_mul_(change, (eta + 1.0) / (t + eta))
            torch._foreach_add_(means, change)

    return update


class AnytimeAverage(AveragedModel):
    """`AveragedModel(model, multi_avg_fn=anytime_average(eta))`, only quicker to update.

    After the t-th step: mean ← mean + (η+1)/(t+η)·(θ - mean). Torch's own class searches the model
    for its tensors and copies every buffer alone in each step, which on a GPU can take a large part
    of the step's time. Here the model is searched once, and one kernel serves many tensors.
    The state is the same.

    Args:
        model: the model that is trained. Its layers must stay the same objects.
        eta: the window is always about the last 1/(η+1) of the run.
        device: where the average is kept; None: where the model is.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> averaged = AnytimeAverage(model, eta=0)
    >>> for value in (1.0, 2.0, 6.0):
    ...     _ = nn.init.constant_(model.weight, value)
    ...     averaged.update_parameters(model)
    >>> round(averaged.module.weight.item(), 6)
    3.0
    """

    def __init__(
        self, model: nn.Module, eta: float = 8.0, device: torch.device | int | None = None
    ) -> None:
        super().__init__(model, device, multi_avg_fn=anytime_average(eta))
        self._found: _Found | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy has tensors of its own, and must not copy the model that is trained.
        return {**self.__dict__, "_found": None}

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Take in the weights of `model`; its buffers are copied."""
        # The first time torch copies; and a count that was moved to a device is not read here.
        if not is_host(self.n_averaged.device) or not self.n_averaged.item():
            super().update_parameters(model)
            return
        if self._found is None or self._found.model is not model:
            self._found = _Found.between(self.module, model)
        assert self.multi_avg_fn is not None
        for pairs in self._found.weights:
            self.multi_avg_fn(*pairs.tensors(), self.n_averaged)
        for pairs in self._found.buffers:
            torch._foreach_copy_(*pairs.tensors())
        self.n_averaged += 1


class _Found(NamedTuple):
    """The places of a model's tensors and of their means, those of one kind together."""

    model: nn.Module
    weights: list[_Pairs]
    buffers: list[_Pairs]

    @classmethod
    def between(cls, mean: nn.Module, model: nn.Module) -> _Found:
        holders = "_parameters", "_buffers"
        return cls(model, *(_paired(_slots(mean, each), _slots(model, each)) for each in holders))


class _Pairs:
    """Tensors of one kind and their means.

    On an accelerator one kernel can take in parameters that lie side by side (`join`) at once; the
    means are then moved next to each other too.
    """

    def __init__(self) -> None:
        self.means: Slots = []
        self.currents: Slots = []
        self._places: list[object] = []  # where the tensors were that are whole
        self._whole: tuple[list[Tensor], list[Tensor]] | None = None

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """The means and the current values, on the device of the means."""
        means = [holder[name] for holder, name in self.means]
        currents = [holder[name] for holder, name in self.currents]
        device = means[0].device
        both = means + currents
        if _launches(device) and PLAIN.issuperset(map(type, both)):
            places = [*map(Tensor.data_ptr, both), *map(Tensor.stride, both)]
            if places != self._places:
                self._places, self._whole = places, _whole(means, currents)
            if self._whole is not None:
                return self._whole
        return means, [value if value.device == device else value.to(device) for value in currents]


def _launches(device: torch.device) -> bool:
    """Whether a kernel for many tensors takes longer to launch than one for one."""
    return not is_host(device)


def _whole(means: list[Tensor], currents: list[Tensor]) -> tuple[list[Tensor], list[Tensor]] | None:
    """Both as one tensor each; None: the current values are apart."""
    current = whole(currents)
    lie_alike = [m.stride() for m in means] == [c.stride() for c in currents]
    if current is None or not lie_alike or current.device != means[0].device:
        return None
    if whole(means) is None:
        join(means)
    mean = whole(means)
    return None if mean is None or mean.dtype != current.dtype else ([mean], [current])


def _slots(model: nn.Module, holder: str) -> Slots:
    """The places of a model's tensors in order, a shared one once."""
    seen: set[int] = set()
    found = []
    for module in model.modules():
        held = getattr(module, holder)
        for name, tensor in list(held.items()):
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                found.append((held, name))
    return found


def _paired(own: Slots, source: Slots) -> list[_Pairs]:
    if len(own) != len(source):
        raise ValueError(
            f"The model has {len(source)} tensors where the average has {len(own)}. Update it with "
            "the model that it was made of, or make a new one."
        )
    kinds: dict[Any, _Pairs] = {}
    for mine, its in zip(own, source, strict=True):
        tensor = mine[0][mine[1]]
        pairs = kinds.setdefault((tensor.device, tensor.dtype), _Pairs())
        pairs.means.append(mine)
        pairs.currents.append(its)
    return list(kinds.values())
