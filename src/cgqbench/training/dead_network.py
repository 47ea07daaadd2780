"""Whether a network is dead: no input changes its answer, and no gradient changes that."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from cgqbench.tasks.seeds import seed_everything
from cgqbench.training.feed import Batch
from cgqbench.training.learner import Learner

ENOUGH = 10_000
"""Examples for which a network must have been dead before its run ends.

One epoch of the image sets. A few batches are not the end where there is dropout or augmentation:
other masks and other crops may light it again.
"""

# A pass of which the gradient is wanted keeps what it computed: no more inputs than a batch has.
BATCH_SIZE = 100


def trained_weights(model: nn.Module) -> list[Tensor]:
    """The parameters that are trained; the first is in most networks what the inputs meet first.

    >>> [tuple(each.shape) for each in trained_weights(nn.Linear(2, 3))]
    [(3, 2), (3,)]
    """
    return [each for each in model.parameters() if each.requires_grad]


def dead_since(before: Sequence[Tensor], learner: Learner) -> bool:
    """Whether a network is dead, and was so throughout an epoch that found its weights w `before`.

        w₁ = w₁_before,  f(x) = f(x'),  ∂f(x)/∂w₁ = 0,  ∂f(x)/∂x = 0   for all test inputs x and x'

    The first and the last two bit for bit: w₁, the first weights, are what they were, and neither
    they nor the inputs have a way through the network. On a plateau, where all but nothing comes
    through, a gradient is small but not zero. Whatever moved in the epoch must have a gradient of
    the answers, as the last bias has, which learns how frequent each is. What moved without one has
    another way, in training alone, or decays; so may come back, and is not called dead. Where
    nothing moved, as after steps of zero, no weight at all may have a gradient.

    Of a copy: a model may count its passes. An error ends no run, which could do without these
    passes; what cannot be told is not dead.
    """
    if not torch.equal(before[0], trained_weights(learner.model)[0]):
        return False
    size = min(BATCH_SIZE, learner.cell.batch_size)
    # cuDNN's recurrent layers have no gradient in evaluation mode.
    with learner.arithmetic.other_passes(), torch.backends.cudnn.flags(enabled=False):
        try:
            model = copy.deepcopy(learner.model).eval()
            weights = trained_weights(model)
            pairs = zip(before, weights, strict=True)
            moved = [now for was, now in pairs if not torch.equal(was, now)]
            still = [] if moved else weights
            return nothing_goes_through(model, learner.feed.test(size), moved, still)
        except Exception:
            return False


def nothing_goes_through(
    model: nn.Module,
    batches: Iterable[Batch],
    moved: Sequence[Tensor] = (),
    still: Sequence[Tensor] = (),
) -> bool:
    """Whether a model gives several inputs one answer, and has no gradient that could change it.

    Of the weights in `moved` it must have one, in some batch; of those in `still`, as of the first
    and of the inputs, none. False also of answers that are no tensor with a row for each input.

    >>> dark = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> batches = [(torch.randn(4, 2), torch.zeros(4, 1))]
    >>> nothing_goes_through(dark, batches)
    False
    >>> _ = nn.init.constant_(dark[0].bias, -100.0)
    >>> nothing_goes_through(dark, batches)
    True
    >>> nothing_goes_through(dark, batches, moved=[dark[2].bias])
    True
    >>> nothing_goes_through(dark, batches, moved=[dark[0].bias])
    False
    >>> nothing_goes_through(dark, batches, still=[dark[2].bias])
    False
    """
    first, count, unexplained = None, 0, list(moved)
    for inputs, _ in batches:
        with torch.no_grad():
            answers = _answers(model, inputs)
        if not _has_rows(answers, len(inputs)):
            return False
        first = answers[:1] if first is None else first
        if answers.shape[1:] != first.shape[1:] or _any_differs(answers, first):
            return False
        count += len(inputs)
        ways = [trained_weights(model)[0], *still]
        if inputs.is_floating_point():
            inputs = inputs.detach().requires_grad_()
            ways.append(inputs)
        grads = _gradients(model, inputs, [*ways, *unexplained])
        if not all(grad is not None and _is_zero(grad) for grad in grads[: len(ways)]):
            return False
        pairs = zip(unexplained, grads[len(ways) :], strict=True)
        unexplained = [each for each, grad in pairs if grad is None or _is_zero(grad)]
    return count > 1 and not unexplained


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


def _gradients(
    model: nn.Module, inputs: Tensor, sought: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Of all answers at once, each with a weight of its own: some sums of them are constant."""
    answers = _answers(model, inputs)
    weighted = (answers * torch.rand_like(answers)).sum()
    return torch.autograd.grad(weighted, sought, allow_unused=True)


def _is_zero(grad: Tensor) -> bool:
    return not grad.to_dense().count_nonzero()
