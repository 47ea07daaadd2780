"""What a result was measured on."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import torch

import cgq

LIBRARIES = (
    *("numpy", "schedulefree", "prodigyopt", "dadaptation", "dog-optimizer"),
    *("mechanic-pytorch", "pytorch_optimizer"),
)


def hardware(device: torch.device) -> str:
    """The model of the processor that computes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of everything whose arithmetic takes part, as far as it is installed."""
    found = {
        "cgq": cgq.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found
