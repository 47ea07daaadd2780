"""Rival line searches, written from their papers, with the honest probes of cgq."""

from cgqbench.baselines.armijo import Armijo
from cgqbench.baselines.pal import PAL

__all__ = ["PAL", "Armijo"]
