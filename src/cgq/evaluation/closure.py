"""A mini-batch's loss as a function of where the parameters stand, from the user's closure."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from cgq.evaluation.closure_kinds import Closure, called_with_backward
from cgq.evaluation.environment import Environment
from cgq.evaluation.gradients import StaleGradients
from cgq.evaluation.loss import check_loss, detached, loss_value
from cgq.evaluation.objective import Objective, PassNotes
from cgq.evaluation.precision import dtypes_behind, rounding
from cgq.vectors.sharding import gather_anew, gathering, local

COMPUTED_BEFORE = (
    "The closure returned the same loss again: it was computed before the step, and tells nothing "
    "of a trial. Compute it in the closure, and call neither zero_grad() nor backward():\n"
    "    loss = optimizer.step(lambda: loss_function(model(inputs), targets))\n"
    "or, if backward() needs a host's help, only when asked:\n"
    "    def closure(backward): ...  # loss = ...; if backward: accelerator.backward(loss)"
)


def objective_of(closure: Closure, params: Sequence[Tensor], environment: Environment) -> Objective:
    """The objective of a closure; the closure itself if it is one (a captured graph, say).

    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> batch = objective_of(lambda: weight.square().sum(), [weight], Environment(None))
    >>> loss = batch.first_pass(StaleGradients([weight]))
    >>> batch.prepare_probes()
    >>> _ = weight.data.mul_(2)
    >>> loss.item(), batch.probe(weight.device)
    (3.0, 12.0)
    >>> batch.end_probes()
    >>> weight.grad
    tensor([2., 2., 2.])
    """
    if hasattr(closure, "first_pass"):
        return cast(Objective, closure)
    if not callable(closure):
        raise TypeError(
            f"step() takes a function that computes the loss, not {type(closure).__name__}: "
            "optimizer.step(lambda: loss_function(model(inputs), targets))."
        )
    return ClosureObjective(closure, params, environment)


class ClosureObjective:
    """Evaluates a closure as it comes: an `Objective`.

    Three closures are told apart: `closure(backward)`; one that has called backward() by the time
    it returns; and one that only returns the loss. Probes of the first and the last run without
    gradient. What else an evaluation changes is put back by `Environment`.
    """

    def __init__(
        self, closure: Closure, params: Sequence[Tensor], environment: Environment
    ) -> None:
        self._params = params
        self._closure, self._takes_backward = called_with_backward(closure)
        self._environment = environment
        self._notes: PassNotes = getattr(closure, "notes", PassNotes())
        self._grads: list[Tensor | None] = []
        self._values: list[Tensor] = []
        self._others: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
        self._gathering: list[nn.Module] = []
        self._loss: Any = None  # of the first pass, with its graph
        self._first: weakref.ref[Tensor] | None = None  # the same, kept by its owner only
        self.runs_backward = False  # known after the first pass
        self.draws_differ = False
        self.uses_callers = False  # gradients, which were there before the first pass
        self.dropped: Sequence[Tensor] = []  # gradients to which it would have added its own

    def first_pass(self, stale: StaleGradients) -> Tensor | float | None:
        """Run the closure and leave the gradient of its loss in `.grad`. None: it gave no loss."""
        given = stale.new(self._params)
        # Of stale ones only those that the caller may mean again are kept through the pass.
        at_hand = [param.grad for param in self._params] if stale.from_caller else given
        try:
            # Without old gradients it shows who ran backward(), and none is added to an old one.
            self._drop_grads()
            with self._environment.first_pass(self._params[0].device.type), torch.enable_grad():
                loss = self._loss_and_gradient(at_hand, given, stale.cleared)
        except BaseException:
            try:
                self._set_grads(at_hand)
            finally:
                self._environment.rewind()
            raise
        self._grads = [param.grad for param in self._params]
        return loss

    @property
    def rounding(self) -> float:
        """The relative error of the loss, as far as the types it passed through tell."""
        dtypes = dtypes_behind(self._loss, self._params[0].device) | self._environment.casts
        return max(self._notes.rounding, rounding(dtypes))

    def _loss_and_gradient(
        self, at_hand: list[Tensor | None], given: list[Tensor | None], cleared: bool
    ) -> Tensor | float | None:
        loss = self._loss = self._call(backward=True)
        if loss is not None:
            check_loss(loss)
        self._first = weakref.ref(loss) if isinstance(loss, Tensor) else None
        if self._has_grads():
            self.runs_backward = not self._takes_backward
            self.dropped = [grad for grad in given if grad is not None]
            return detached(loss)
        if isinstance(loss, Tensor) and loss.requires_grad and not self._takes_backward:
            if cleared:  # else they may be of another's backward(), as those of a GAN's other half
                self.dropped = [grad for grad in given if grad is not None]
            _run_backward(loss)
        else:  # whoever called step() has run backward() before
            self._set_grads(at_hand)
            self.uses_callers = self._has_grads()
        if loss is not None and not self._has_grads():
            self._refuse_to_go_on()
        return detached(loss)

    def _refuse_to_go_on(self) -> None:
        """Raise, unless nothing is to be trained."""
        if not any(param.requires_grad for param in self._params):
            return
        if self._takes_backward:
            raise RuntimeError(
                "The closure left no gradient although it was asked for one: call "
                "loss.backward() in it when backward is True."
            )
        raise RuntimeError(
            "The closure left no gradient: its loss carries no graph that reaches the "
            "optimizer's parameters, and none of them has a .grad. Return the loss tensor "
            "itself (not loss.item(), not under no_grad), or call backward() before step()."
        )

    def prepare_probes(self) -> None:
        """Note how the first pass left everything; call before the first probe."""
        self._loss = None  # its graph has been looked at
        self._environment.mark()
        self._gathering = gathering(self._environment.modules, self._params)
        gather_anew(self._gathering)
        if self.runs_backward:  # and may write every gradient to the same memory, as DDP does
            self._values = [local(grad).clone() for grad in self._grads if grad is not None]
            self._set_aside_others()

    def probe(self, device: torch.device) -> Tensor | float:
        """The loss at the present parameters, with the first pass's noise."""
        self._environment.rewind_for_probe()
        self._drop_grads()
        try:
            with torch.set_grad_enabled(self.runs_backward):
                loss = self._call(backward=False)
        except RuntimeError as error:
            if self.runs_backward or "does not require grad" not in str(error):
                raise
            raise RuntimeError(
                "The closure differentiates, but probes run without gradient. Decorate it with "
                "@torch.enable_grad()."
            ) from error
        finally:
            gather_anew(self._gathering)
            if self._values:
                grads = [local(grad) for grad in self._grads if grad is not None]
                torch._foreach_copy_(grads, self._values)
        if not (self._takes_backward or self.runs_backward):  # these may draw for the gradient too
            self.draws_differ |= not self._environment.has_drawn_alike()
        self.draws_differ |= self._notes.draws_differ
        if loss is None:
            raise RuntimeError("The closure returned a loss at first and None when probed.")
        check_loss(loss)
        # Without a graph it may have been written anew: a captured CUDA graph does that.
        again = self._first is not None and loss is self._first()
        if again and isinstance(loss, Tensor) and loss.requires_grad:
            raise RuntimeError(COMPUTED_BEFORE)
        return loss_value(loss, device)

    def end_probes(self) -> None:
        """Leave gradients, generators and buffers as after the first pass."""
        self._restore_grads()
        self._environment.resume()

    def undo(self) -> None:
        """Leave generators and buffers as before the first pass; the gradients stay."""
        self._restore_grads()
        self._environment.rewind()

    def _set_aside_others(self) -> None:
        """Keep the gradients of parameters that backward() reaches but the optimizer does not."""
        own = set(map(id, self._params))
        for module in self._environment.modules:
            for param in module.parameters(recurse=False):
                if id(param) not in own:
                    grad = param.grad
                    self._others.append((param, grad, None if grad is None else grad.clone()))

    def _restore_grads(self) -> None:
        self._set_grads(self._grads)
        for param, grad, value in self._others:
            param.grad = grad
            if grad is not None and value is not None:
                grad.copy_(value)

    def undo_buffers_where(self, lost: Tensor) -> None:
        """As `undo` where `lost` is true, for buffers, without the host looking at `lost`."""
        self._environment.rewind_buffers_where(lost)

    def _call(self, *, backward: bool) -> Any:
        # Autocast caches weights it has cast: a probe would see those of the point before.
        torch.clear_autocast_cache()
        return self._closure(backward)

    def _has_grads(self) -> bool:
        return any(param.grad is not None for param in self._params)

    def _drop_grads(self) -> None:
        for param in self._params:
            param.grad = None

    def _set_grads(self, grads: Sequence[Tensor | None]) -> None:
        for param, grad in zip(self._params, grads, strict=True):
            param.grad = grad


def _run_backward(loss: Tensor) -> None:
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if "backward through the graph a second time" in str(error):
            raise RuntimeError(COMPUTED_BEFORE) from error
        raise
