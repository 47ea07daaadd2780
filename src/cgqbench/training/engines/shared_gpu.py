"""Several processes on one GPU at once, instead of by turns: NVIDIA's multi-process service."""

from __future__ import annotations

import os
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CONTROL = "nvidia-cuda-mps-control"
PATIENCE = 20.0  # seconds for its last client to end
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"


@contextmanager
def shared_gpu() -> Iterator[dict[str, str]]:
    """Run the service meanwhile; what a process needs in its environment to take part.

    A service that is announced in the environment already is used and left running.
    """
    if PIPE in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="cgq-mps-", ignore_cleanup_errors=True) as folder:
        environment = {PIPE: folder, LOG: folder}
        service = {**os.environ, **environment}
        try:
            subprocess.run([CONTROL, "-d"], env=service, check=True, stdout=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            warnings.warn(
                f"{CONTROL} could not be started ({error}), so runs on one GPU take turns and more "
                "--jobs gain little. It comes with NVIDIA's driver.",
                stacklevel=2,
            )
            yield {}
            return
        try:
            yield environment
        finally:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [CONTROL], input="quit\n", text=True, env=service, timeout=PATIENCE, check=False
                )
