"""PyTorch Lightning: `return CGQ(self)` in `configure_optimizers`."""

from cgq.hosts.lightning import CGQ, LineSearch, StepMonitor

__all__ = ["CGQ", "LineSearch", "StepMonitor"]
