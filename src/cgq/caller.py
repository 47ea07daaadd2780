"""The caller's side of a step: the closure, what is in `.grad`, and what it is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from cgq.clipping import Unclipped
from cgq.closure import Closure, Evaluated, objective_of
from cgq.notices import DROPPED, OTHER_DRAWS, Notices
from cgq.objective import Leftovers, Objective
from cgq.probe import World


class Caller:
    """Who calls an optimizer's `step`, from one call to the next.

    `model` is the module whose buffers a probe must not change; None: those the closure calls.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model
        self.unclipped = Unclipped()
        self.notices = Notices()
        self._looked = False
        self._leftovers = Leftovers([])
        self._found: Leftovers | None = None

    @property
    def model(self) -> nn.Module | None:
        return self._world.model

    @model.setter
    def model(self, model: nn.Module | None) -> None:
        if not (model is None or isinstance(model, nn.Module)):
            raise ValueError(f"Invalid model: {model!r}. Pass the torch.nn.Module you train.")
        self._world = World(model)

    @property
    def modules(self) -> Iterable[nn.Module]:
        """Those met in this step."""
        return self._world.modules

    def has_found(self, params: Sequence[Tensor]) -> None:
        """What is in `.grad` of new parameters is hardly an accumulation: nobody is told of it."""
        self._found = Leftovers(params)

    def gradients_are_done_with(self, params: Sequence[Tensor]) -> None:
        """What is in `.grad` now is no gradient of the next step."""
        self._leftovers, self._found = Leftovers(params), None
        self.unclipped.forget()

    @contextmanager
    def first_pass(
        self, closure: Closure, params: Sequence[Tensor]
    ) -> Iterator[tuple[Objective, Tensor | float | None]]:
        """The closure's loss, with its gradient in `.grad`. Undone if the block raises."""
        objective, leftovers = objective_of(closure, params, self._world), self._leftovers
        found = self._found is not None and any(map(self._found.hold, params))
        try:
            loss = objective.first_pass(leftovers)
            try:
                zeroed = self._leftovers is not leftovers  # by the closure's zero_grad()
                if not (zeroed or found):
                    self._tell_of_dropped(objective)
                yield objective, loss
            except BaseException:
                objective.undo()
                raise
        finally:
            self._world.forget()
            # An objective of its own replaces gradients: it asks for no leftovers.
            self.gradients_are_done_with(params if isinstance(objective, Evaluated) else ())
        if objective.draws_differ:
            self.notices.give(OTHER_DRAWS)

    def _tell_of_dropped(self, objective: Objective) -> None:
        if objective.dropped and not self._looked:
            self._looked = True  # only once: on an accelerator the host waits for the norms
            if any(bool(grad.norm()) for grad in objective.dropped):
                self.notices.give(DROPPED)
