"""LineSearch on a GPU: the same steps as on the CPU, and no wait without a search."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from waits import no_waiting
from wrapped_run import is_well

from cgq import LineSearch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Job:
    """Double precision, no dropout: both devices can agree."""

    def __init__(self, device: str, kind: Any, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).double()
        self.model.to(device)
        self.inputs = torch.randn(32, 4).double().to(device)
        self.optimizer = LineSearch(kind(self.model.parameters(), lr=0.01), **options)

    def step(self) -> None:
        self.optimizer.step(lambda: (self.model(self.inputs) - self.inputs[:, :1]).square().mean())


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_the_same_steps_as_on_the_host(kind: Any) -> None:
    jobs = [Job(device, kind, search_prob=0.3) for device in ("cpu", "cuda")]
    for number in range(40):
        for job in jobs:
            if number == 20:
                is_well(job.optimizer)
            job.step()
        host, gpu = (job.optimizer.last_search for job in jobs)
        assert (host is None) == (gpu is None)
    for mine, its in zip(*(job.model.parameters() for job in jobs), strict=True):
        torch.testing.assert_close(its.cpu(), mine, rtol=1e-7, atol=1e-9)


def test_no_wait_without_a_search() -> None:
    job = Job("cuda", torch.optim.AdamW, search_prob=0.0)
    for _ in range(3):
        job.step()
    with no_waiting():
        for _ in range(5):
            job.step()
    assert job.optimizer.last_search is None
    assert job.optimizer.param_groups[0]["steps"] == 8
