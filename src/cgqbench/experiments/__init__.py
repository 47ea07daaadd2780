"""What is compared: the experiments of the paper and those beside it."""

from cgqbench.experiments.registry import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
