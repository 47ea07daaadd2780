"""Several processes, a checkpoint after each epoch, and a run that goes on where it was killed.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/with_torchrun.py

trains with DDP and takes a few seconds on two cores; `--sharded` trains with FSDP2 and prints the
same. Kill a process, or all of them and start again, and see it go on. The variable lets processes
that torchrun starts again find each other. With GPUs there is nothing to change.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from cgq import CGQ

EPOCHS = 6


def rings(count: int) -> tuple[Tensor, Tensor]:
    """Points of the plane, and in which of three rings around the origin they lie."""
    points = torch.randn(count, 2)
    return points, torch.bucketize(points.norm(dim=1), torch.tensor([0.8, 1.5]))


def network(sharded: bool, device: torch.device) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 33), nn.ReLU(), nn.Linear(33, 33), nn.ReLU())
    model.append(nn.Linear(33, 3)).to(device)
    if not sharded:
        return DistributedDataParallel(model)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


def epochs_saved(folder: Path) -> int:
    """How many epochs the newest checkpoint has seen; one that was not finished has no metadata."""
    return max((int(path.parent.name) for path in folder.glob("*/.metadata")), default=0)


def save(model: nn.Module, optimizer: CGQ, path: Path) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path)  # type: ignore[attr-defined]


def load(model: nn.Module, optimizer: CGQ, path: Path) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=path)  # type: ignore[attr-defined]
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


def train(sharded: bool, folder: Path, device: torch.device) -> None:
    torch.manual_seed(0)
    data = TensorDataset(*rings(600))
    model = network(sharded, device)
    optimizer = CGQ(model.parameters(), lr=3.0, search_prob=0.5, smoothing=0.5)
    sampler: DistributedSampler[Tensor] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    total = torch.zeros((), device=device)

    start = epochs_saved(folder)
    if start == EPOCHS and dist.get_rank() == 0:
        print(f"{folder} holds a finished run. Remove it to train again.")
    if start:
        load(model, optimizer, folder / str(start))
    for epoch in range(start, EPOCHS):
        sampler.set_epoch(epoch)
        total.zero_()
        for points, labels in loader:
            x, y = points.to(device), labels.to(device)
            total += optimizer.step(lambda x=x, y=y: nn.functional.cross_entropy(model(x), y))
        save(model, optimizer, folder / str(epoch + 1))
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            loss = total.item() / len(loader) / dist.get_world_size()
            print(f"epoch {epoch + 1} (from {start}): loss {loss:.9f}", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--sharded", action="store_true")
    arguments.add_argument("--folder", type=Path, help="Default: one below out/ for each way.")
    chosen = arguments.parse_args()
    way = "fsdp" if chosen.sharded else "ddp"
    folder = chosen.folder or Path("out/with_torchrun", way)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.set_default_dtype(torch.float64)  # so that both ways end at the same digits
    dist.init_process_group()  # gloo between CPUs, NCCL between GPUs
    train(chosen.sharded, folder, device)
    # The model is gone by now: one that outlives the group can keep gloo from ending.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
