"""Several processes on one GPU at once, instead of by turns: NVIDIA's multi-process service."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

CONTROL = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"


@contextmanager
def shared_gpu() -> Iterator[dict[str, str]]:
    """Run the service meanwhile; what a process needs in its environment to take part.

    A service that is announced in the environment already is used and left running.
    """
    if PIPE in os.environ:
        yield {}
        return
    if shutil.which(CONTROL) is None:
        warnings.warn(
            f"{CONTROL} is not installed, so runs on one GPU take turns and more --jobs gain "
            "little. It comes with NVIDIA's driver.",
            stacklevel=2,
        )
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="cgq-mps-") as folder:
        environment = {PIPE: folder, LOG: folder}
        service = {**os.environ, **environment}
        subprocess.run([CONTROL, "-d"], env=service, check=True, stdout=subprocess.DEVNULL)
        try:
            yield environment
        finally:
            subprocess.run([CONTROL], input="quit\n", text=True, env=service, check=False)
