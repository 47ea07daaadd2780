"""What trains: every method by name, and the text that names one."""

from cgqbench.methods.parsing import chosen
from cgqbench.methods.registry import METHODS

__all__ = ["METHODS", "chosen"]
