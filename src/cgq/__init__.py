"""Training without a learning rate: conjugate gradients with a quadratic line search."""

from cgq.average import AnytimeAverage, anytime_average
from cgq.cgq import CGQ
from cgq.conjugate_descent import ConjugateDescent
from cgq.line_search import LineSearch
from cgq.rules.momentum import bounded, dai_yuan, fletcher_reeves, hestenes_stiefel, polak_ribiere
from cgq.rules.parabola import Parabola, least_squares, two_point
from cgq.rules.quadratic_search import QuadraticSearch, quadratic_search
from cgq.rules.search import Search, SearchRule, Start
from cgq.vectors.side_by_side import join, side_by_side

__version__ = "0.1.0"

__all__ = [
    "CGQ",
    "AnytimeAverage",
    "ConjugateDescent",
    "LineSearch",
    "Parabola",
    "QuadraticSearch",
    "Search",
    "SearchRule",
    "Start",
    "anytime_average",
    "bounded",
    "dai_yuan",
    "fletcher_reeves",
    "hestenes_stiefel",
    "join",
    "least_squares",
    "polak_ribiere",
    "quadratic_search",
    "side_by_side",
    "two_point",
]
