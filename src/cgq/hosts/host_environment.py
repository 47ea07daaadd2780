"""The environment of a step whose first pass a host has run before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from cgq.engine.optimizer import SearchOptimizer
from cgq.evaluation.environment import Environment


class HostEnvironment(Environment):
    """An environment whose first pass comes in parts, and is over when the step begins.

    Args:
        model: its modules are those inside it.
        host_s_model: and those inside this one, and all others that are called in a part, unless
            one of these two holds a compiled module: torch warns where such a one meets a hook.
    """

    def __init__(self, model: nn.Module, host_s_model: nn.Module | None = None) -> None:
        self.host_s_model = host_s_model
        super().__init__(model)

    def forget(self) -> None:
        """Let go of modules, states and copies: the step is over, or another begins."""
        super().forget()
        self._has_begun = self._is_over = False

    @contextmanager
    def part(self, device_type: str) -> Iterator[None]:
        """Where the host runs a part of the first pass."""
        with ExitStack() as until_its_end:
            if not self._has_begun:
                # Look at every generator: batches, drawn between two parts, are not drawn again.
                self._passes = 0
                until_its_end.enter_context(super().first_pass(device_type))
                self._has_begun = True
            else:
                self._written.watch(self.modules)
                until_its_end.callback(self._written.look)
            if self.host_s_model is not None:
                self._meet(self.host_s_model)
                if not any("_orig_mod" in module._modules for module in self.modules):
                    hooks: dict[Any, Any] = torch.nn.modules.module._global_forward_pre_hooks
                    hooks[self] = self._hook
                    until_its_end.callback(hooks.pop, self, None)
            yield

    def end_parts(self) -> None:
        """As before the first pass, which the step's own will only resume."""
        self.mark()
        self.rewind()
        self._is_over = True

    @contextmanager
    def first_pass(self, device_type: str = "cpu") -> Iterator[None]:
        """Remember how everything was before this block, unless the parts have shown it."""
        with ExitStack() as until_its_end:
            if not self._is_over:  # the optimizer is used by hand
                until_its_end.enter_context(super().first_pass(device_type))
            yield


def host_environment(optimizer: SearchOptimizer, model: nn.Module) -> HostEnvironment:
    """The optimizer's own, from now on, for a step of a host that trains this model."""
    environment = optimizer._environment
    # One for a whole run: a compiled module is compiled anew for each hook it meets.
    if not isinstance(environment, HostEnvironment):
        named = model if environment.model is None else environment.model
        environment = optimizer._environment = HostEnvironment(named)
    environment.host_s_model = model
    environment.forget()
    return environment
