"""Agreement between the processes of a distributed run."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Ranks:
    """The ranks that train one model together: `group`, or all of them if it is None.

    Without an initialised process group there is one rank, and every call returns its argument.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group

    @property
    def several(self) -> bool:
        """Whether there is anyone to agree with."""
        if not (dist.is_available() and dist.is_initialized()):
            return False
        return dist.get_world_size(self._group) > 1

    @property
    def members(self) -> list[int]:
        """Their numbers in the whole run."""
        return sorted(dist.get_process_group_ranks(self._group or dist.group.WORLD))

    def refuse_join(self, modules: Iterable[nn.Module]) -> None:
        """Raise where a rank without data would leave the others waiting in a search."""
        if not self.several:
            return
        for module in modules:
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
        on_gpu = dist.get_backend(self._group) == "nccl"
        shared = values.to("cuda" if on_gpu and device.type == "cpu" else device, copy=True)
        dist.all_reduce(shared, group=self._group)
        return (shared / dist.get_world_size(self._group)).to(device)

    def mean_number(self, value: Tensor | float) -> Tensor | float:
        """The mean of one number over the ranks."""
        if not self.several:
            return value
        if isinstance(value, Tensor):
            return self.mean(value)
        return self.mean(torch.tensor(value, dtype=torch.float64)).item()
