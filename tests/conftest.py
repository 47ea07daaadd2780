"""One thread per test process, unless told: the suite runs several at once."""

import getpass
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import torch

# A shell has what it starts in the background ignore Ctrl-C, which some tests are about.
signal.signal(signal.SIGINT, signal.default_int_handler)
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)
# Inductor's cache does not tell them apart (torch 2.13), and kernels made for another capability
# do not compile, or crash.
if capability := os.environ.get("ATEN_CPU_CAPABILITY"):
    cache = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}_{capability}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))


@pytest.fixture(autouse=True)
def threads_and_denormals_as_before():
    """A run of cgqbench sets both for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def as_if_nothing_was_compiled():
    """Once a module was compiled in place each new optimizer looks for such ones: 0.2 s a test."""
    yield
    if compiler := sys.modules.get("torch._dynamo.eval_frame"):
        compiler.always_optimize_code_objects.clear()


@pytest.fixture
def without_onednn():
    """For bf16: some virtual processors announce AMX and stumble over it; oneDNN believes them."""
    # torch.backends.mkldnn.flags() warns on some processors, and setting .enabled is forbidden once
    # torch's own test suite has been imported.
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(enabled)
