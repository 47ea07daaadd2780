"""COCOB, continuous coin betting: Orabona and Tommasi, 2017."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cgqbench.methods.baselines.settings import require


class COCOB(Optimizer):
    r"""Every coordinate bets a share of its wealth on the sign of its next gradient.

    .. math::
        L_t = \max(L_{t-1}, |g_t|), \quad G_t = G_{t-1} + |g_t|, \quad S_t = S_{t-1} - g_t, \quad
        R_t = \max(R_{t-1} - g_t (θ_t - θ_1), 0)

    .. math::
        θ_{t+1} = θ_1 + \frac{S_t}{L_t \max(G_t + L_t, α L_t)} (L_t + R_t)

    All tensors of a group move together: on a GPU a kernel for each would take most of the time.

    Args:
        params: parameters or parameter groups.
        alpha: α, about how many steps the first bets are kept small.
        weight_decay: as L2, in the gradient.
        eps: L_0; at least the root of the smallest normal number of a parameter's type, for its
            square is divided by.

    >>> theta = torch.nn.Parameter(torch.tensor([3.0]))
    >>> optimizer = COCOB([theta], alpha=1.0)
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     (theta - 1).square().sum().backward()
    ...     optimizer.step()
    >>> abs(theta.item() - 1) < 0.1
    True
    """

    def __init__(
        self, params: Any, *, alpha: float = 100.0, weight_decay: float = 0.0, eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"alpha": alpha, "weight_decay": weight_decay, "eps": eps})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take a group, whose own settings are checked as those of all are."""
        settings = {**self.defaults, **param_group}
        for name in ("alpha", "weight_decay"):
            value = settings[name]
            require(0.0 <= value < math.inf, name, value, "Use a number of 0 or more.")
        require(0.0 < settings["eps"] < math.inf, "eps", settings["eps"], "Use a positive number.")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step by the gradients of the closure, or by those that are there."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moving = [
            ([param for param in group["params"] if param.grad is not None], group)
            for group in self.param_groups
        ]
        together = [param for params, _ in moving for param in params]
        if any(param.grad.is_sparse for param in together):
            raise ValueError("COCOB bets on every coordinate. Use dense gradients (sparse=False).")
        if any(param.is_complex() for param in together):
            raise ValueError("COCOB bets on real numbers. Train torch.view_as_real(...) of these.")
        for params, group in moving:
            if params:
                self._bet(params, group["alpha"], group["weight_decay"], group["eps"])
        return loss

    def _bet(self, params: list[Tensor], alpha: float, weight_decay: float, eps: float) -> None:
        grads: Any = [param.grad for param in params]
        if weight_decay:
            grads = torch._foreach_add(grads, params, alpha=weight_decay)
        states = [self._state(param, eps) for param in params]
        start, largest, total, negative, reward = (
            [state[name] for state in states]
            for name in ("start", "largest", "total", "negative", "reward")
        )
        sizes = torch._foreach_abs(grads)
        torch._foreach_maximum_(largest, sizes)
        torch._foreach_add_(total, sizes)
        torch._foreach_sub_(negative, grads)
        torch._foreach_addcmul_(reward, grads, torch._foreach_sub(params, start), value=-1.0)
        torch._foreach_clamp_min_(reward, 0.0)
        scale = torch._foreach_maximum(
            torch._foreach_add(total, largest), torch._foreach_mul(largest, alpha)
        )
        torch._foreach_mul_(scale, largest)
        bet = torch._foreach_add(reward, largest)
        torch._foreach_mul_(bet, negative)
        torch._foreach_div_(bet, scale)
        torch._foreach_copy_(params, torch._foreach_add(bet, start))

    def _state(self, param: Tensor, eps: float) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[param]
        if not state:
            state["start"] = param.detach().clone()
            least = math.sqrt(torch.finfo(param.dtype).tiny)
            state["largest"] = torch.full_like(param, max(eps, least))
            for name in ("total", "negative", "reward"):
                state[name] = torch.zeros_like(param)
        return state
