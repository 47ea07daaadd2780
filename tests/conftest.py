"""One thread per test process: the suite runs several at once."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def without_onednn():
    """For bf16: some virtual processors announce AMX and stumble over it; oneDNN believes them."""
    # torch.backends.mkldnn.flags() warns on some processors, and setting .enabled is forbidden once
    # torch's own test suite has been imported.
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(enabled)
