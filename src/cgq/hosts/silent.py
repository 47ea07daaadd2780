"""A LightningModule's `training_step` once more, without a trace in logs and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric

from cgq.hosts.patching import patched


@contextmanager
def silent(module: LightningModule) -> Iterator[None]:
    """Nothing logged, and torchmetrics, whose states are no buffers, as before."""
    inside = list(module.modules())
    loggers = [each for each in inside if isinstance(each, LightningModule)]
    metrics = [(each, _attributes_of(each)) for each in inside if isinstance(each, Metric)]
    with ExitStack() as restored:
        for logger in loggers:
            restored.enter_context(patched(logger, "log", lambda *args, **kwargs: None))
        for metric, attributes in metrics:
            restored.callback(vars(metric).update, attributes)
        yield


def _attributes_of(metric: Metric) -> dict[str, Any]:
    """All of them, and copies of the states: updates may write in place."""
    return vars(metric) | {
        name: state.clone() if isinstance(state, Tensor) else list(state)
        for name, state in metric.metric_state.items()
    }
