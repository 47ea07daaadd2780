"""Agreement between the processes of a distributed run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cgq.rules import scalars
from cgq.rules.scalars import Number


class Ranks:
    """The ranks that train one model together: `group`, or all of them if it is None.

    Without an initialised process group there is one rank, and every call returns its argument.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group

    @property
    def several(self) -> bool:
        """Whether there is anyone to agree with."""
        if not (dist.is_available() and dist.is_initialized()):
            return False
        return dist.get_world_size(self.group) > 1

    @property
    def members(self) -> list[int]:
        """Their numbers in the whole run."""
        return sorted(dist.get_process_group_ranks(self.group or dist.group.WORLD))

    def refuse_join(self, modules: Iterable[nn.Module]) -> None:
        """Raise where a rank without data would leave the others waiting in a search."""
        for module in modules if self.several else ():
            join = module._join_config if isinstance(module, DistributedDataParallel) else None
            if join is not None and join.enable and not join.throw_on_early_termination:
                raise RuntimeError(
                    "Join answers for a rank without data in backward(), but not in a line "
                    "search: the others would wait for it. Give every rank as many batches "
                    "(DistributedSampler does), or use Join(..., throw_on_early_termination=True)."
                )

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the ranks, the same on each of them to the last bit."""
        if not self.several:
            return values
        device = values.device
        on_gpu = dist.get_backend(self.group) == "nccl"
        shared = values.to("cuda" if on_gpu and device.type == "cpu" else device, copy=True)
        dist.all_reduce(shared, group=self.group)
        return (shared / dist.get_world_size(self.group)).to(device)

    def agreed(self, numbers: Sequence[Number], device: torch.device) -> list[Number]:
        """The mean of each number, with one collective: floats on the host, elsewhere unread."""
        means = self.mean(scalars.stacked(device, *numbers))
        return means.tolist() if scalars.is_host(device) else list(means.unbind())
