"""How far ρ reaches: by the size of a network, and by how long it has trained. Numbers only."""

from __future__ import annotations

import math

from cgq.rules.trust import SAFE

# The ceiling that the trust region's factors were found with. A larger ρ is not multiplied; lines
# and batches have to allow it. What a small network begins with needs no such leave: on an
# autoencoder both would refuse what it gains by.
USUAL = 0.005
FAR = 2.0  # after `full_steps` agreement may make it so many times ρ
MIDDLING = 4_000_000  # weights of a network that begins with ρ itself
LEAST, MOST = 0.5, 2.0  # times ρ, with which the largest and the smallest begin


def outset(weights: int) -> float:
    """√(4,000,000/n), within ½ and 2: how many times ρ a network of n weights may begin with.

    What a step does to the outputs adds up over layers, and grows with their width: so the same
    relative step is longer for a large network, while noise has not yet decided how short it is.

    >>> outset(1_000_000), outset(4_000_000), outset(100_000_000)
    (2.0, 1.0, 0.5)
    """
    return min(MOST, max(LEAST, math.sqrt(MIDDLING / max(1, weights))))


def at_first(rho: float, weights: int) -> float:
    """With how many times ρ a network of so many weights begins: a large ρ is not multiplied.

    >>> at_first(0.005, 1000), at_first(0.008, 1000), at_first(0.015, 1000), at_first(0.015, 10**9)
    (2.0, 1.25, 1.0, 0.5)
    """
    most = outset(weights)
    return min(most, max(1.0, most * USUAL / rho))


def fading(taken: int, full_steps: float, most: float = 1.0) -> float:
    """min(most, √(full_steps/t)) for the step number t that follows those taken.

    >>> fading(999, 1000), fading(3999, 1000), fading(0, 1000, most=2.0)
    (1.0, 0.5, 2.0)
    """
    return min(most, math.sqrt(full_steps / (taken + 1)))


def usual(earned: float, rho: float) -> float:
    """What is left of an earned ceiling where lines are bent: all of the usual one, less of more.

    >>> usual(0.005, rho=0.005), round(usual(0.012, rho=0.015), 4), usual(0.0005, rho=0.015)
    (0.005, 0.004, 0.0005)
    """
    return max(min(earned, SAFE), earned * min(1.0, USUAL / rho))


def near(rho: float, most: float) -> float:
    """How wide agreement quickly makes it."""
    return min(rho, USUAL) * min(1.0, most)


def widest(rho: float, age: float, most: float) -> float:
    """How wide agreement may make it: six times that at first, twice after `full_steps`."""
    return FAR * near(rho, most) / math.sqrt(age + 0.1)
