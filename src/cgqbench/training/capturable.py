"""What a model must not do in a pass that is to be captured: a graph would repeat it wrongly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from cgq.evaluation import rng
from cgqbench.tasks.task import TaskError


@contextmanager
def only_what_a_graph_repeats(model: nn.Module, batch: Sequence[Tensor]) -> Iterator[None]:
    """Refuse passes, run in this block, that draw on the host, change inputs or replace buffers."""
    states = rng.states()
    buffers = list(map(id, model.buffers()))
    versions = [tensor._version for tensor in batch]
    yield
    drawn = rng.changed(states, rng.states())
    if on_host := sorted(name for name in drawn if not name.startswith("torch.cuda")):
        raise TaskError(
            f"The model draws random numbers on the host ({', '.join(on_host)}), which a captured "
            "graph would repeat. Add --no-graphs."
        )
    if list(map(id, model.buffers())) != buffers:
        raise TaskError(
            "The model replaces a buffer in its forward pass, where a captured graph would go on "
            "with the old one. Write into it (copy_, mul_, add_), or add --no-graphs."
        )
    if [tensor._version for tensor in batch] != versions:
        raise TaskError(
            "The model changes its inputs in place, so no second look at a batch can be trusted. "
            "Use operations without a trailing underscore on them."
        )
