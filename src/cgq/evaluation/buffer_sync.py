"""The buffers of a replicated model, which are those of the first rank when a pass begins."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class BufferSync:
    """What DistributedDataParallel has noted about its next pass, as it was.

    Before a pass it sends the buffers of rank 0 to the others, unless the pass before was one
    without gradients. A probe is such a one: it would leave each rank with buffers of its own.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        is_spread = dist.is_available() and dist.is_initialized()
        self._noted = [
            (module, module.require_forward_param_sync)
            for module in (modules if is_spread else ())
            if isinstance(module, DistributedDataParallel)
        ]

    def restore(self) -> None:
        """Let the next pass do as it would have done then."""
        for module, noted in self._noted:
            module.require_forward_param_sync = noted

    def restore_where(self, lost: Tensor) -> None:
        """Nothing: a pass with gradients asks for the same each time."""


def share_buffers(module: object) -> None:
    """Send them now if `module` is about to, for passes that will not go through it."""
    if not isinstance(module, DistributedDataParallel):
        return
    if module.will_sync_module_buffers():  # type: ignore[no-untyped-call]
        module._sync_buffers()  # type: ignore[no-untyped-call]
