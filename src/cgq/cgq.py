"""CGQ: conjugate gradients with a quadratic line search, as a torch optimizer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from cgq.conjugate_descent import ConjugateDescent
from cgq.rules.momentum import Rule, polak_ribiere
from cgq.rules.parabola import Fit, two_point


class CGQ(ConjugateDescent):
    r"""Conjugate gradients with a quadratic line search: no learning rate, no momentum to tune.

    .. math::
        p_t = -g_t + β_t p_{t-1}, \quad
        β_t = \min(\max(0, β^{PR}_t), β_{max}),

        θ_{t+1} = θ_t + α_t p_t, \quad
        α_t = \min(-B/2A, α_{max}),

    where :math:`Aα^2 + Bα + C` is fitted to the loss of the same mini-batch along the step.

    Args:
        params: parameters or parameter groups; a group may set its own `lr` and `weight_decay`.
        lr: the ceiling α_max of the step, for schedulers and warm-up to act on. A group with a
            smaller one has its part of the line scaled by the ratio.
        max_relative_step: a second ceiling, ρ·‖θ‖/‖p‖; steps are then averaged as shares of it.
        momentum: a rule for β, or a number (heavy ball).
        max_momentum: β_max, the bound of what a rule returns.
        nesterov: Nesterov's form of the momentum.
        weight_decay: L2 decay in the direction (not in the searched loss).
        decoupled_weight_decay: decay outside the direction: θ ← (1 - α·weight_decay)·θ + αp.
        fit: `two_point`, `least_squares`, or a function like them.
        max_fits: how many parabolas at most; a search costs at most one evaluation more.
        probe: the first trial step; None: min(0.1, lr/3), or the ceiling if it is relative.
        search_prob: the share of batches that are searched (sCGQ); others use the average step,
            unless their loss stands above its recent level (see `docs/options.md`).
            Under a relative ceiling all are at first, while the share moves or the loss rises.
        smoothing: the share of the old value kept when step and momentum are updated.
        model: the module whose buffers a probe must not change; None: those called by the closure,
            which a compiled function hides. Not copied or pickled.
        seed: decides which batches are searched.
        maximize: climb instead.
        process_group: the ranks that share the model; None: all of them.

    After each step `group["step_size"]` and `group["beta"]` tell what was applied,
    `last_search` what the search saw. `group["skipped"]` counts steps that were skipped
    because loss, gradient or every trial was not finite, `group["rejected_fits"]` parabolas lost in
    the rounding of the loss. On an accelerator such a number may be a 0-dim tensor: to read it is
    to wait.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> inputs, targets = torch.randn(8, 3), torch.randn(8, 1)
    >>> optimizer = CGQ(model.parameters())
    >>> loss = optimizer.step(lambda: torch.nn.functional.mse_loss(model(inputs), targets))
    >>> optimizer.last_search.accepted
    True
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.3,
        *,
        max_relative_step: float | None = None,
        momentum: Rule | float = polak_ribiere,
        max_momentum: float = 0.8,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        fit: Fit = two_point,
        max_fits: int = 3,
        probe: float | None = None,
        search_prob: float = 1.0,
        smoothing: float = 0.0,
        model: nn.Module | None = None,
        seed: int = 0,
        maximize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            search=None,
            weight_decay=weight_decay,
            model=model,
            process_group=process_group,
            max_relative_step=max_relative_step,
            momentum=momentum,
            max_momentum=max_momentum,
            nesterov=nesterov,
            decoupled_weight_decay=decoupled_weight_decay,
            fit=fit,
            max_fits=max_fits,
            probe=probe,
            search_prob=search_prob,
            smoothing=smoothing,
            seed=seed,
            maximize=maximize,
        )
