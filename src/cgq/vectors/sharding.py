"""Parameters of which each rank holds a shard: DTensors, as FSDP2's `fully_shard` makes them.

All arithmetic is done on a rank's own shard. What a shard alone cannot tell, an inner product, is
the sum over the shards; a loss is the mean over the ranks, sharded or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cgq.rules.scalars import Number
from cgq.vectors.process_group import Ranks

Reduce = Callable[[list[Number], list[Number]], tuple[list[Number], list[Number]]]
"""Makes the inner products of this rank's parts the whole ones, and takes the mean of what comes
along, with one collective."""


def is_sharded(tensor: Any) -> bool:
    """Whether it is a DTensor; told without importing them, which takes a second."""
    return hasattr(tensor, "to_local")


def local(tensor: Any) -> Any:
    """What this rank holds of the tensor: all of it, unless it is a DTensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def sharded_like(param: Any, part: Tensor) -> Tensor:
    """`part` itself, or as the DTensor that is spread as `param` is: sharing memory.

    So a distributed checkpoint can give it to another number of ranks.
    """
    if not is_sharded(param):
        return part
    from torch.distributed.tensor import DTensor

    shape = param.shape + part.shape[param.dim() :]  # a complex number is a pair in the part
    return DTensor.from_local(
        part,
        param.device_mesh,
        param.placements,
        shape=shape,
        stride=torch.empty(shape, device="meta").stride(),
    )


def take_over(mine: Any, saved: Any) -> None:
    """Copy a saved state into the optimizer's own."""
    if is_sharded(mine) != is_sharded(saved):
        raise RuntimeError(
            "The loaded state is sharded and the parameters are not, or the other way round. "
            "Load it with set_optimizer_state_dict of torch.distributed.checkpoint.state_dict."
        )
    local(mine).copy_(local(saved))


def reduction(params: Sequence[Any], ranks: Ranks) -> Reduce | None:
    """How parts of inner products become the whole ones; None: a rank holds all of each vector."""
    spreads = {_spread(tensor) for param in params for tensor in (param, param.grad)}
    if len(spreads) > 1:
        raise RuntimeError(
            "Some parameters or gradients are sharded and others are not, or not over the same "
            "ranks, as when tensor parallelism and FSDP are mixed. CGQ follows one line through "
            "all parameters: shard them all with fully_shard over one mesh."
        )
    spread = spreads.pop()
    if spread is None:
        return None
    if spread.ranks != tuple(ranks.members):
        raise RuntimeError(
            f"The parameters are sharded over the ranks {list(spread.ranks)}, but losses are "
            f"averaged over {ranks.members}. Pass the same ranks as process_group."
        )
    device = local(params[0]).device

    def reduce(parts: list[Number], along: list[Number]) -> tuple[list[Number], list[Number]]:
        # Each shard is held by as many ranks as any other: their mean is the mean over shards.
        means = ranks.agreed([*parts, *along], device)
        count = len(parts)
        return [mean * spread.shards for mean in means[:count]], means[count:]

    return reduce


def gather_anew(modules: Iterable[nn.Module]) -> None:
    """Let FSDP modules drop the weights they gathered: the parameters have moved since."""
    for module in modules:
        module.reshard()  # type: ignore[operator]


def gathering(modules: Iterable[nn.Module], params: Sequence[Any]) -> list[nn.Module]:
    """The FSDP modules among `modules`, which keep copies of the parameters."""
    if not any(map(is_sharded, params)):
        return []
    from torch.distributed.fsdp import FSDPModule

    found = list(modules)
    if not found:
        raise RuntimeError(
            "The parameters are sharded, and the closure called no module that the optimizer could "
            "see, so it cannot tell FSDP that they move. Pass CGQ(..., model=model)."
        )
    return [module for module in found if isinstance(module, FSDPModule)]


class _Spread(NamedTuple):
    """The ranks that share a tensor, and into how many shards they cut it."""

    ranks: tuple[int, ...]
    shards: int


def _spread(tensor: Any) -> _Spread | None:
    if not is_sharded(tensor):
        return None
    mesh = tensor.device_mesh
    cuts = [place.is_shard() for place in tensor.placements]
    if any(place.is_partial() for place in tensor.placements):
        raise RuntimeError("A gradient is still to be summed over ranks (Partial): reduce it.")
    shards = math.prod(mesh.size(dim) for dim, cut in enumerate(cuts) if cut)
    return _Spread(tuple(sorted(mesh.mesh.flatten().tolist())), shards)
