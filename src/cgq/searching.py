"""What every optimizer has that searches along a line: its caller, its ranks, its memory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from cgq.caller import Caller
from cgq.memory import Memory
from cgq.progress import DEFAULTS, read
from cgq.ranks import Ranks
from cgq.search import Search


class Searching(Optimizer):
    """An optimizer whose `step(closure)` may evaluate the closure more than once."""

    last_search: Search | None
    """What the last step saw in its search, or None if it did not search."""

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        model: nn.Module | None,
        process_group: ProcessGroup | None,
    ) -> None:
        self._attach(model, process_group)
        super().__init__(params, {**defaults, **DEFAULTS})
        self._caller.has_found(self._params())

    def _attach(self, model: nn.Module | None, process_group: ProcessGroup | None) -> None:
        """Set what is neither copied nor saved with the optimizer."""
        self.last_search = None
        self._caller = Caller(model)
        self._ranks = Ranks(process_group)
        self._memory: Memory | None = None

    @property
    def model(self) -> nn.Module | None:
        """The module whose buffers a probe must not change. It may be named at any time."""
        return self._caller.model

    @model.setter
    def model(self, model: nn.Module | None) -> None:
        self._caller.model = model

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "defaults" in state:  # unpickled or copied; load_state_dict brings no defaults
            self._attach(None, None)
        super().__setstate__(state)
        self._memory = None
        for group in self.param_groups:  # states saved before a number existed
            group.update(DEFAULTS | group)

    def state_dict(self) -> dict[str, Any]:
        """The state, for any checkpoint; numbers that stayed on an accelerator are read here."""
        state = super().state_dict()
        for group in state["param_groups"]:
            group |= read(group)
        return state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch. Zeros left in place count as no gradient."""
        super().zero_grad(set_to_none)
        self._caller.gradients_are_done_with(self._params())

    def clipping(self) -> AbstractContextManager[None]:
        """Where gradients are clipped, or changed otherwise, between backward() and the step.

        The direction is then made of what the block leaves in `.grad`, and its slope with the
        gradients of the loss that were there before: a search needs both.

        >>> import torch
        >>> from cgq import CGQ
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = CGQ([weight])
        >>> def closure(backward):
        ...     loss = weight.square().sum()
        ...     if backward:
        ...         loss.backward()
        ...         with optimizer.clipping():
        ...             torch.nn.utils.clip_grad_norm_(weight, 0.1)
        ...     return loss
        >>> loss = optimizer.step(closure)
        """
        return self._caller.unclipped.kept(self._params())

    def _params(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]
