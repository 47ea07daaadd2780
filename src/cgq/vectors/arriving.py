"""Numbers on their way from an accelerator to the host."""

from __future__ import annotations

import torch
from torch import Tensor


class Arriving:
    """Lets a device copy numbers to the host when it gets there; nobody waits before `read`.

    >>> Arriving(torch.tensor([1.0, 2.0])).read()
    [1.0, 2.0]
    """

    def __init__(self, numbers: Tensor) -> None:
        self._numbers, self._event = numbers, None
        if numbers.is_cuda:
            self._numbers = torch.empty_like(numbers, device="cpu", pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(numbers.device))

    def read(self) -> list[float]:
        """The numbers, for which the host waits if it must."""
        if self._event is not None:
            self._event.synchronize()
        found: list[float] = self._numbers.reshape(-1).tolist()
        return found
