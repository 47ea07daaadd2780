"""CGQ by name in timm's optimizer factory."""

from cgq.hosts.timm import register

__all__ = ["register"]
