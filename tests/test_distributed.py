"""Two processes on halves of a batch take the steps of one process on the whole."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cgq import CGQ
from ids import option_id

STEPS = 30


def train(rank: int, world: int, options: dict[str, Any]) -> tuple[list[Tensor], list[Any]]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    inputs, targets = torch.randn(STEPS, 16, 4).double(), torch.randn(STEPS, 16, 1).double()
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = CGQ(model.parameters(), **options)
    share = slice(rank * 16 // world, (rank + 1) * 16 // world)
    seen = []
    for x, y in zip(inputs, targets, strict=True):
        optimizer.step(
            lambda x=x, y=y: nn.functional.mse_loss(model(x[share]), y[share])  # type: ignore[misc]
        )
        search = optimizer.last_search
        seen.append(None if search is None else (search.trial_steps, search.trial_losses))
    return [param.detach().clone() for param in model.parameters()], seen


def worker(rank: int, port: int, options: dict[str, Any], out: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        torch.save(train(rank, 2, options), out / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "options", [{}, {"search_prob": 0.3, "max_relative_step": 0.02, "lr": 10.0}], ids=option_id
)
def test_two_processes_equal_one(options: dict[str, Any], tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(worker, args=(port, options, tmp_path), nprocs=2)
    params, seen = train(0, 1, options)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert ranks[0][1] == ranks[1][1], "the ranks took different decisions"
    assert [s is None for s in seen] == [s is None for s in ranks[0][1]]
    for alone, first, second in zip(params, ranks[0][0], ranks[1][0], strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, alone, rtol=0.0, atol=1e-10)
