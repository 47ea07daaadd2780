"""Rival line searches, written here, with the honest probes of cgq."""

from cgqbench.methods.baselines.armijo import Armijo
from cgqbench.methods.baselines.gen import GeN
from cgqbench.methods.baselines.pal import PAL

__all__ = ["PAL", "Armijo", "GeN"]
