"""The command `cgq`."""

from cgqbench.cli.commands import app, main

__all__ = ["app", "main"]
