"""skorch: a net whose probes are forward passes."""

from cgq.hosts.skorch import CGQNet

__all__ = ["CGQNet"]
