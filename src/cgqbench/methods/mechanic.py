"""What the library's Mechanic (Cutkosky and others, 2023) lacks to be run, saved and continued."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

from cgqbench.methods.around import Around

TUNER = "_mechanic"  # the library's entry in the state


class Mechanic(Around):
    """A mechanized optimizer that takes a closure and whose checkpoint can be loaded.

    The library runs a closure without gradients, so it is run here. And it keeps the start of
    each parameter under the parameter itself, which no other run has: in a checkpoint it is the
    parameter's number, as in torch's own part of it.
    """

    def __init__(self, mechanized: Optimizer) -> None:
        super().__init__(mechanized)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move by the gradients at hand, or by those that the closure leaves."""
        loss = None if closure is None else closure()
        self.base.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The state in plain numbers and tensors."""
        saved = super().state_dict()
        number = {param: place for place, param in enumerate(self._params())}
        return _renamed(saved, number)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(_renamed(state_dict, dict(enumerate(self._params()))))

    def _params(self) -> list[Any]:
        return [param for group in self.param_groups for param in group["params"]]


def _renamed(saved: dict[str, Any], names: Mapping[Any, Any]) -> dict[str, Any]:
    """The same state, in which the tuner knows the parameters by other names."""
    state = dict(saved["state"])
    if TUNER in state:  # else no step has been taken
        state[TUNER] = {names.get(key, key): entry for key, entry in state[TUNER].items()}
    return {**saved, "state": state}
