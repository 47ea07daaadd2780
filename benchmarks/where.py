"""What a benchmark was run on."""

from __future__ import annotations

import torch

from cgqbench.records.machine import hardware, versions


def measured_on(device: torch.device) -> str:
    """The processors, that of the host too: a GPU may wait for it; and the versions."""
    known, host = versions(), hardware(torch.device("cpu"))
    place = host if device.type == "cpu" else f"{hardware(device)} beside {host}"
    return f"{place}, cgq {known['cgq']}, torch {known['torch']}, Python {known['python']}"
