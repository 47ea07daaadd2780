"""What a user is told, once each."""

from __future__ import annotations

import sys
import warnings

CLASSIC = (
    "This closure runs backward() itself, so every probe of the line search pays for a backward "
    "pass. Let it only return the loss, and the optimizer will call backward() once per step; or "
    "write closure(backward) and call backward() only when asked."
)
IN_LIGHTNING = (
    "Lightning's closure runs backward(), clipping and hooks in every probe of the line search, "
    "and gradients that it clips make the search's slope wrong. In configure_optimizers return "
    "cgq.lightning.CGQ(self), or cgq.lightning.LineSearch(self, base)."
)
DROPPED = (
    "The gradients that backward() put into .grad before step(closure) do not count: the closure "
    "makes its own. To accumulate, run every micro-batch in closure(backward). If they were not "
    "meant to count, call zero_grad() before step()."
)
FORGOTTEN = (
    "The closure returned no loss and left no gradient, so nothing is trained. Does it lack a "
    "`return loss`?"
)
CONSTANT = (
    "In ten searches the loss was exactly the same at every trial, although its slope promised a "
    "change. Was it computed before the step? Compute it in the closure, and call neither "
    "zero_grad() nor backward(): optimizer.step(lambda: loss_function(model(inputs), targets))."
)
FROZEN = (
    "No parameter of this optimizer requires a gradient, so nothing is trained. Call "
    "requires_grad_() on those to train, or give the optimizer others."
)
OTHER_DRAWS = (
    "A probe of the line search drew other random numbers than the first pass of the same step, so "
    "their losses cannot be compared. A closure must draw alike whatever the parameters. If "
    "torch.compile reached its recompile_limit, one pass had compiled dropout and the other eager: "
    "raise torch._dynamo.config.recompile_limit, or keep shapes fixed."
)
NOT_REPEATED = (
    "The closure gave another loss at the same weights, so the losses of a line search cannot be "
    "compared. It must compute the same batch each time it is called within a step: take the batch "
    "from the loader before it, draw from torch's, NumPy's and Python's own generators only, and "
    "begin each call with the same hidden state (detach() it outside)."
)
RAISED = (
    "A trial of the line search raised, although the batch's own pass had not, and was rejected as "
    "too long: {error}"
)
CAPPED = (
    "Nearly all of the last hundred searches ended at the ceiling lr={ceiling:g}, or at the first "
    "trial below it, while the loss still fell: the ceiling is the rate, and not the search. Raise "
    "both, say to lr={more:g}, probe={trial:g}, or let the weights bound the step: CGQ(..., "
    "lr=math.inf, max_relative_step=0.01)."
)
LOWERED = (
    "Searches end at the ceiling lr={ceiling:g}, which somebody has set to less than a thousandth "
    "of its first value, {first:g}: so lr is the rate, and not the search. A rate or a schedule "
    "made for another optimizer is none for a ceiling: leave lr alone, or multiply {first:g} by "
    "the schedule."
)
STUCK = (
    "The loss is still about where it began after a thousand steps or more: the mean of the last "
    "hundred is not 1 % below that of the first twenty. If the network's units have died, begin "
    "again with a third of max_relative_step. Else look at data, targets and initial weights. A "
    "network that was trained before may have nothing left to learn."
)
UNSEEN = (
    "No step has seen a loss so far, so none was searched, all of max_relative_step was used from "
    "the first one on, and nobody would see this run die. Give step() a closure that returns the "
    "loss: optimizer.step(lambda: loss_function(model(inputs), targets)). In the Hugging Face "
    "Trainer, use cgq.huggingface.CGQTrainer."
)
UNSEARCHED = (
    "No step had a closure that returned a loss so far, so none was searched: all took a fixed "
    "step, group['step_size']. Give step() one, without zero_grad() and backward(): "
    "optimizer.step(lambda: loss_function(model(inputs), targets)). In the Hugging Face Trainer, "
    "use cgq.huggingface.CGQTrainer."
)
COPIED = (
    "A copy or a pickle of this optimizer does not hold its process_group: the copy agrees with "
    "all ranks. Give it the group again: copy.process_group = group."
)
LOST = (
    "Twenty steps in a row were skipped, because the loss, its gradient, the step made of it or "
    "every trial was not finite. The weights stay where they are. Look at the batches and at the "
    "range of half-precision numbers; an optimizer inside LineSearch may also have lost itself: "
    "some of D-Adaptation's do, because the moves they learn from are no longer theirs."
)
RUINED = (
    "Twenty steps in a row were skipped, because the loss was not finite, and the step before them "
    "was not searched. If the batches are well, that step was too long, and nothing can bring "
    "these weights back: load the last checkpoint. Then search more batches (search_prob=1), lower "
    "lr, or bound the steps with max_relative_step=0.01."
)
WRITTEN = (
    "A training step wrote to a tensor of its batch in place, and every probe of the line search "
    "writes to it again. Unless that changes nothing, their losses cannot be compared. Work on a "
    "copy: `x = x - mean` instead of `x -= mean`, or `x = x.clone()` before."
)


class Messages:
    """Those given by one optimizer."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def give(self, message: str, **details: object) -> None:
        """Warn the code outside torch and cgq that led here, unless it has been."""
        if message in self._given:
            return
        self._given.add(message)
        frame, level = sys._getframe(), 1
        inside = "cgq", "torch", "contextlib", "copy"
        while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in inside:
            frame, level = frame.f_back, level + 1
        warnings.warn(message.format(**details), UserWarning, stacklevel=level)
