"""Training without a learning rate: conjugate gradients with a quadratic line search."""

from cgq.anytime import AnytimeAverage
from cgq.average import anytime_average
from cgq.momentum import bounded, dai_yuan, fletcher_reeves, hestenes_stiefel, polak_ribiere
from cgq.optimizer import CGQ
from cgq.parabola import Parabola, least_squares, two_point
from cgq.search import Search, quadratic_search
from cgq.wrap import LineSearch

__version__ = "0.1.0"

__all__ = [
    "CGQ",
    "AnytimeAverage",
    "LineSearch",
    "Parabola",
    "Search",
    "anytime_average",
    "bounded",
    "dai_yuan",
    "fletcher_reeves",
    "hestenes_stiefel",
    "least_squares",
    "polak_ribiere",
    "quadratic_search",
    "two_point",
]
