"""Rivals that are written here: line searches with the honest probes of cgq, and COCOB."""

from cgqbench.methods.baselines.armijo import Armijo
from cgqbench.methods.baselines.cocob import COCOB
from cgqbench.methods.baselines.gen import GeN
from cgqbench.methods.baselines.pal import PAL

__all__ = ["COCOB", "PAL", "Armijo", "GeN"]
