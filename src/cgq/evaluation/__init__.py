"""A closure, repeated without a trace: what a training loop needs that runs passes itself.

These names are public, for hosts and for objectives of one's own, such as captured graphs.
"""

from cgq.evaluation import rng
from cgq.evaluation.closure import objective_of
from cgq.evaluation.closure_kinds import Closure
from cgq.evaluation.environment import Environment
from cgq.evaluation.gradients import StaleGradients
from cgq.evaluation.loss import loss_value
from cgq.evaluation.objective import Objective
from cgq.evaluation.precision import dtypes_behind, rounding
from cgq.vectors.cuda_graph import let_draw_again

__all__ = [
    "Closure",
    "Environment",
    "Objective",
    "StaleGradients",
    "dtypes_behind",
    "let_draw_again",
    "loss_value",
    "objective_of",
    "rng",
    "rounding",
]
