"""Rival line searches, written from their papers, with the honest probes of cgq."""

from cgqbench.methods.baselines.armijo import Armijo
from cgqbench.methods.baselines.pal import PAL

__all__ = ["PAL", "Armijo"]
