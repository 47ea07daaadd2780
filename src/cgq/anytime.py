"""The anytime average as a model that is quick to update."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from cgq.average import anytime_average

Slots = list[tuple[dict[str, Tensor], str]]
"""Where modules hold their tensors: a tensor may be replaced, as by `model.to`, its place stays."""


class AnytimeAverage(AveragedModel):
    """`AveragedModel(model, multi_avg_fn=anytime_average(eta))`, the same to the bit but quick.

    After the t-th step: mean ← mean + (η+1)/(t+η)·(θ - mean). Torch's own class searches the model
    for its tensors and copies every buffer alone in each step: on a GPU that can take the host
    longer than the step takes. Here the model is searched once, and one kernel serves many tensors.

    Args:
        model: the model that is trained. Layers must not be added or removed later.
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
        if self._found is None or self._found.model is not model:
            self._found = _Found.between(self.module, model)
        assert self.multi_avg_fn is not None
        for pairs in self._found.weights:
            means, currents = _tensors(pairs)
            # At n = 0 the weight of the current values is 1: a copy.
            self.multi_avg_fn(means, currents, self.n_averaged)
        for pairs in self._found.buffers:
            torch._foreach_copy_(*_tensors(pairs))
        self.n_averaged += 1


class _Found(NamedTuple):
    """The places of a model's tensors and of their means, those of one kind together."""

    model: nn.Module
    weights: list[tuple[Slots, Slots]]
    buffers: list[tuple[Slots, Slots]]

    @classmethod
    def between(cls, mean: nn.Module, model: nn.Module) -> _Found:
        weights = _paired(mean, model, (name for name, _ in mean.named_parameters()))
        return cls(model, weights, _paired(mean, model, (name for name, _ in mean.named_buffers())))


def _paired(mean: nn.Module, model: nn.Module, names: Iterable[str]) -> list[tuple[Slots, Slots]]:
    kinds: dict[Any, tuple[Slots, Slots]] = {}
    for name in names:
        own, source = _slot(mean, name), _slot(model, name)
        tensor = own[0][own[1]]
        owns, sources = kinds.setdefault((tensor.device, tensor.dtype), ([], []))
        owns.append(own)
        sources.append(source)
    return list(kinds.values())


def _slot(model: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    return (module._parameters if last in module._parameters else module._buffers), last


def _tensors(pairs: tuple[Slots, Slots]) -> tuple[list[Tensor], list[Tensor]]:
    """The means and the current values, on the device of the means."""
    means, currents = ([holder[name] for holder, name in slots] for slots in pairs)
    device = means[0].device
    return means, [value if value.device == device else value.to(device) for value in currents]
