"""Whether a network is dead for good: then no further epoch makes it answer to its inputs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from cgqbench.tasks.seeds import seed_everything
from cgqbench.training.feed import Batch
from cgqbench.training.learner import Learner

# A pass of which the gradient is wanted keeps what it computed: no more inputs than a batch has.
BATCH_SIZE = 100


def first_weights(model: nn.Module) -> Tensor:
    """The first parameter that is trained: in most networks what the inputs meet first.

    >>> first_weights(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))).shape
    torch.Size([3, 2])
    """
    return next(each for each in model.parameters() if each.requires_grad)


def dead_since(before: Tensor, learner: Learner) -> bool:
    """Whether a network is dead, and was so throughout an epoch that found its weights w `before`.

        w = w_before,  f(x) = f(x'),  ∂f(x)/∂w = 0,  ∂f(x)/∂x = 0   for all test inputs x and x'

    The first and the last two bit for bit: w, the first weights, are what they were, and neither
    they nor the inputs have a way through the network. On a plateau, where all but nothing comes
    through, a gradient is small but not zero. Weight decay moves w, so that under it no network is
    called dead; it may come back.
    """
    if not torch.equal(before, first_weights(learner.model)):
        return False
    # cuDNN's recurrent layers have no gradient in evaluation mode.
    with learner.arithmetic.other_passes(), torch.backends.cudnn.flags(enabled=False):
        size = min(BATCH_SIZE, learner.cell.batch_size)
        return nothing_goes_through(learner.model, learner.feed.test(size))


def nothing_goes_through(model: nn.Module, batches: Iterable[Batch]) -> bool:
    """Whether a model gives several inputs one answer, and has no gradient that could change it.

    False also where that cannot be told: of answers that are no tensor with a row for each input,
    or of a model of which no gradient can be had.

    >>> dark = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> batches = [(torch.randn(4, 2), torch.zeros(4, 1))]
    >>> nothing_goes_through(dark, batches)
    False
    >>> _ = nn.init.constant_(dark[0].bias, -100.0)
    >>> nothing_goes_through(dark, batches)
    True
    """
    first, count = None, 0
    model.eval()
    try:
        for inputs, _ in batches:
            with torch.no_grad():
                answers = _answers(model, inputs)
            if not _has_rows(answers, len(inputs)):
                return False
            first = answers[:1] if first is None else first
            if answers.shape[1:] != first.shape[1:] or _any_differs(answers, first):
                return False
            if not _has_no_gradient(model, inputs):
                return False
            count += len(inputs)
    finally:
        model.train()
    return count > 1


def _answers(model: nn.Module, inputs: Tensor) -> Tensor:
    seed_everything(0)  # what a model draws even now is no answer to its inputs
    answers: Tensor = model(inputs)
    return answers


def _has_rows(answers: object, count: int) -> bool:
    return (
        isinstance(answers, Tensor)
        and answers.layout == torch.strided
        and answers.dim() > 0
        and len(answers) == count
    )


def _any_differs(answers: Tensor, first: Tensor) -> bool:
    """By more than rounding."""
    return not torch.allclose(answers, first.expand_as(answers), atol=0.0)


def _has_no_gradient(model: nn.Module, inputs: Tensor) -> bool:
    """Whether the gradients of the answers, by first weights and inputs, exist and are zero.

    Of all answers at once, each with a weight of its own: sums of some, as of probabilities, are
    constant.
    """
    sought = [first_weights(model)]
    if inputs.is_floating_point():
        inputs = inputs.detach().requires_grad_()
        sought.append(inputs)
    try:
        answers = _answers(model, inputs)
        weighted = (answers * torch.rand_like(answers)).sum()
        grads = torch.autograd.grad(weighted, sought, allow_unused=True)
    except RuntimeError:
        # Neither training nor evaluation asks for a gradient by the inputs. A model that takes them
        # out of torch has none, and there may be too little memory: no reason to end a run.
        return False
    return all(grad is not None and not grad.count_nonzero() for grad in grads)
