"""What test_distributed.py runs under torchrun: each rank does a part and saves what it saw."""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from cgq import CGQ, LineSearch, hestenes_stiefel

Batches = list[tuple[Tensor, Tensor]]
OPTIONS: dict[str, dict[str, Any]] = {
    "CGQ": {},
    "sCGQ": {"search_prob": 0.3, "smoothing": 0.5},
    "relative": {
        "max_relative_step": 0.02,
        "lr": 10.0,
        "weight_decay": 1e-2,
        "decoupled_weight_decay": True,
    },
    "nesterov": {"momentum": hestenes_stiefel, "weight_decay": 1e-2, "nesterov": True},
}
WIDTHS = 8, 40, 100
MESHES = {"replicated shards": (2, 1), "shards": (1, 2)}


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def network(kind: str, device: str = "cpu") -> nn.Module:
    """Spread as `kind` says. Two shards of its weights are uneven, and one of a bias is empty."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1))
    model.to(device, torch.float64)
    if kind == "alone":
        return model
    if kind == "ddp":
        return DistributedDataParallel(model)
    shape = MESHES.get(kind)
    names = ("copies", "shards") if shape else None
    mesh = init_device_mesh(device, shape or (ranks(),), mesh_dim_names=names)
    for module in model[0], model[2], model:
        fully_shard(module, mesh=mesh)
    return model


def batches(count: int, rows: int = 16) -> Batches:
    data = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, rows, 4, dtype=torch.float64, generator=data)
    return [(x, x.sin().sum(1, keepdim=True)) for x in inputs]


def share(rows: Tensor) -> Tensor:
    """This rank's rows of a batch: the last rank's may be fewer, or none."""
    return torch.tensor_split(rows, ranks())[rank()]


def loss_on(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose mean over the ranks is the whole batch's, whoever has how many rows."""
    loss = nn.functional.mse_loss(model(share(inputs)), share(targets), reduction="sum")
    return loss * (ranks() / targets.numel())


def mean_loss_on(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(share(inputs)), share(targets))


class Run:
    """A network in training, and what its searches saw."""

    def __init__(self, kind: str, device: str = "cpu", **options: Any) -> None:
        self.model, self._device = network(kind, device), device
        self.optimizer = CGQ(self.model.parameters(), **options)
        self.seen: list[Any] = []

    def train(self, data: Batches, loss_on: Callable[..., Tensor] = loss_on) -> Run:
        for x, y in data:
            here = x.to(self._device), y.to(self._device)
            self.step(lambda: loss_on(self.model, *here))
        return self

    def step(self, closure: Callable[..., Any] | None) -> None:
        self.optimizer.step(closure)
        search = self.optimizer.last_search
        self.seen.append(None if search is None else (search.trial_steps, search.trial_losses))

    def weights(self) -> list[Tensor]:
        weights: list[Any] = [param.detach() for param in self.model.parameters()]
        whole = [w.full_tensor() if hasattr(w, "full_tensor") else w.clone() for w in weights]
        return [weight.cpu() for weight in whole]

    def progress(self) -> dict[str, Any]:
        group = self.optimizer.state_dict()["param_groups"][0]
        return {name: value for name, value in group.items() if name != "params"}

    def saved(self, folder: Path) -> Run:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
        return self

    def loaded(self, folder: Path) -> Run:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
        set_state_dict(
            self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer
        )
        return self


def message_of(error: type[Exception], action: Callable[[], object]) -> str:
    try:
        action()
    except error as caught:
        return str(caught)
    return ""


def steps_of(name: str) -> int:
    return 100 if name == "CGQ" else 20


def equal() -> Any:
    """Every way to spread the network, with the plain mean of each rank's rows."""
    seen = {}
    for name, options in OPTIONS.items():
        for kind in ("ddp", "fsdp", *(MESHES if name == "relative" else ())):
            run = Run(kind, **options).train(batches(steps_of(name)), mean_loss_on)
            seen[name, kind] = run.weights(), run.seen
            if kind == "fsdp":
                for state in run.optimizer.state.values():
                    assert all(hasattr(entry, "full_tensor") for entry in state.values())
    return seen


def collectives() -> Any:
    """How many all-reduces of ours each step made, besides the evaluations it was for."""
    seen, made, all_reduce = {}, [], dist.all_reduce

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(1)
        return all_reduce(*args, **kwargs)

    dist.all_reduce = counted
    try:
        for name, options in [*OPTIONS.items(), ("LineSearch", {})]:
            for kind in "ddp", "fsdp":
                run, counts = Run(kind, **options), []
                if name == "LineSearch":
                    run.optimizer = LineSearch(torch.optim.AdamW(run.model.parameters()))
                for batch in batches(12):
                    made.clear()
                    run.train([batch])
                    search = run.optimizer.last_search
                    counts.append(len(made) - (search.evaluations if search else 0))
                seen[name, kind] = counts
    finally:
        dist.all_reduce = all_reduce
    return seen


def counted() -> dict[str, int]:
    """How many weights LineSearch believes the network to have."""
    seen = {}
    for kind in "ddp", "fsdp":
        model = network(kind)
        optimizer = LineSearch(torch.optim.AdamW(model.parameters()))
        x, y = batches(1)[0]
        optimizer.step(lambda model=model, x=x, y=y: loss_on(model, x, y))
        seen[kind] = optimizer._workspace.layout.weights
    return seen


def uneven_data() -> Batches:
    return [*batches(4), *batches(1, 7), *batches(1, 1), *batches(2)]


def uneven() -> Any:
    """Batches that do not come out even, and other ways to write the closure."""
    seen: dict[str, Any] = {}
    for kind in "ddp", "fsdp":
        run = Run(kind).train(uneven_data())
        seen[f"rows {kind}"] = run.weights(), run.seen
        for name, step in {"classic": classic_step, "bare": bare_step}.items():
            run = Run(kind)
            for x, y in batches(6):
                step(run, x, y)
            seen[f"{name} {kind}"] = run.weights(), run.seen
    seen["not finite"] = not_finite()
    seen["raised"] = raised()
    seen["join"] = joined()
    seen["stopped"] = stopped()
    seen["refused"] = refused()
    return seen


def classic_step(run: Run, x: Tensor, y: Tensor) -> None:
    def closure() -> Tensor:
        run.optimizer.zero_grad()
        loss = loss_on(run.model, x, y)
        loss.backward()
        return loss

    run.step(closure)


def bare_step(run: Run, x: Tensor, y: Tensor) -> None:
    run.optimizer.zero_grad()
    loss_on(run.model, x, y).backward()
    run.step(None)


def not_finite() -> tuple[bool, int, Any]:
    """One rank alone sees a loss, and then every trial, that is not finite."""
    run = Run("ddp").train(batches(3))
    (x, y), before = batches(4)[3], run.weights()
    for spoilt in (lambda: True), (lambda: not torch.is_grad_enabled()):
        run.step(lambda: loss_on(run.model, x, y) * (math.inf if spoilt() and rank() else 1.0))
    kept = all(map(torch.equal, run.weights(), before))
    return kept, run.progress()["skipped"], run.seen


def raised() -> tuple[bool, str, list[Tensor], Any]:
    """One rank alone raises in the first trial of a step, and then in every trial of another."""
    run, passes = Run("ddp").train(batches(3)), [0]
    x, y = batches(4)[3]

    def raising_in(trials: range) -> Callable[[], Tensor]:
        passes[0] = -1

        def closure() -> Tensor:
            passes[0] += 1
            loss = loss_on(run.model, x, y)
            if rank() and passes[0] in trials:
                raise ValueError("only here")
            return loss

        return closure

    with warnings.catch_warnings():
        warnings.filterwarnings("error" if not rank() else "ignore", "A trial .* raised")
        run.step(raising_in(range(1, 2)))
    before = run.weights()
    told = message_of(Exception, lambda: run.step(raising_in(range(1, 99))))
    kept = all(map(torch.equal, run.weights(), before))
    run.train(batches(2))
    return kept, told, run.weights(), run.seen


def joined() -> str:
    run = Run("ddp")

    def train() -> None:
        with Join([run.model]):
            run.train(batches(3 + rank()))

    return message_of(RuntimeError, train)


def stopped() -> tuple[str, int, list[Tensor]]:
    run = Run("ddp")

    def train() -> None:
        with Join([run.model], throw_on_early_termination=True):
            run.train(batches(3 + rank()))

    return message_of(RuntimeError, train), run.progress()["steps"], run.weights()


def refused() -> list[str]:
    """What a sharded run cannot do."""
    alone = [dist.new_group([number]) for number in range(ranks())][rank()]
    apart = Run("fsdp", process_group=alone)

    mixed = Run("fsdp")
    plain = nn.Linear(1, 1).double()
    mixed.optimizer.add_param_group({"params": plain.parameters()})
    whole = nn.Sequential(mixed.model, plain)

    wrong = Run("fsdp").train(batches(1))
    state = Run("ddp").train(batches(1)).optimizer.state_dict()

    x, y = batches(1)[0]
    weight = nn.Parameter(
        distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
    )
    unseen = CGQ([weight])

    def loaded() -> None:
        wrong.optimizer.load_state_dict(state)
        wrong.train(batches(1))

    return [
        message_of(RuntimeError, lambda: apart.train(batches(1))),
        message_of(RuntimeError, lambda: mixed.step(lambda: loss_on(whole, x, y))),
        message_of(RuntimeError, loaded),
        message_of(RuntimeError, lambda: unseen.step(lambda: weight.square().sum().full_tensor())),
    ]


def saving(folder: Path) -> Any:
    """Checkpoints at the start and half way, and where the run ends."""
    seen = {}
    for kind in "ddp", "fsdp":
        run = Run(kind, **OPTIONS["sCGQ"]).saved(folder / f"{kind} 0").train(batches(10))
        run.saved(folder / f"{kind} 10").train(batches(20)[10:])
        seen[kind] = run.weights(), run.progress()
    return seen


def saved_on_one() -> tuple[list[Tensor], float]:
    """LineSearch, whose state rank 0 alone asks for: the other must not wait for numbers."""
    model = network("ddp")
    optimizer = LineSearch(torch.optim.SGD(model.parameters(), lr=0.1))
    for number, (x, y) in enumerate(batches(12)):
        optimizer.step(partial(loss_on, model, x, y))
        if not rank() and number % 3 == 1:
            optimizer.state_dict()
    weights = [param.detach().clone() for param in model.parameters()]
    return weights, optimizer.param_groups[0]["radius"]


def widths() -> dict[int, list[Tensor]]:
    """Layers of which some shards begin where a cache line does, and others not."""
    seen = {}
    for width in WIDTHS:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
        for module in (model[0], model[2], model) if ranks() > 1 else ():
            fully_shard(module)
        optimizer = CGQ(model.parameters())
        for x, y in batches(6):
            optimizer.step(partial(loss_on, model, x.float(), y.float()))
        weights: list[Any] = [param.detach() for param in model.parameters()]
        seen[width] = [w.full_tensor() if ranks() > 1 else w for w in weights]
    return seen


def other_arithmetic() -> Any:
    """Each rank sees another rounding of its loss: one computes it in bf16."""
    torch._C._set_mkldnn_enabled(False)  # some processors announce more than they can
    seen = {}
    for name, make in {
        "CGQ": CGQ,
        "LineSearch": lambda p: LineSearch(torch.optim.AdamW(p)),
    }.items():
        model = DistributedDataParallel(network("alone").float())
        optimizer, steps = make(model.parameters()), []
        for x, y in batches(30):
            with torch.autocast("cpu", torch.bfloat16, enabled=rank() == 1):
                optimizer.step(lambda x=x, y=y: loss_on(model, x.float(), y.float()))
            steps.append(optimizer.last_search.trial_steps)
        seen[name] = [param.detach().clone() for param in model.parameters()], steps
    return seen


class Centred(nn.Module):
    """Notes in a buffer what it has seen, of which each rank has its own idea."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1, dtype=torch.float64)
        self.register_buffer("centre", torch.zeros(()))
        self.starts: list[tuple[bool, float]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.starts.append((torch.is_grad_enabled(), self.centre.item()))
        self.centre += 1.0 + 9.0 * rank()
        return self.line(inputs)


def buffers() -> Any:
    """What the passes of a step begin with, of optimizers that search and of one that does not."""
    seen = {}
    kinds = {
        "SGD": torch.optim.SGD,
        "CGQ": CGQ,
        "LineSearch": lambda p: LineSearch(torch.optim.SGD(p)),
    }
    for name, make in kinds.items():
        model = DistributedDataParallel(Centred())
        optimizer = make(model.parameters())
        for x, y in batches(6):
            optimizer.zero_grad()
            if name == "SGD":
                loss_on(model, x, y).backward()
                optimizer.step()
            else:
                optimizer.step(partial(loss_on, model, x, y))
        seen[name] = model.module.starts, model.module.centre.item()
    return seen


def training(folder: Path) -> Any:
    """All that needs nothing from one process; in one go, for processes are slow to start."""
    return {
        "equal": equal(),
        "uneven": uneven(),
        "saved": saving(folder),
        "collectives": collectives(),
        "counted": counted(),
        "saved on one": saved_on_one(),
        "widths": widths(),
        "buffers": buffers(),
        "other arithmetic": other_arithmetic(),
    }


def loading(folder: Path) -> Any:
    """The rest of the run, from what two ranks have saved and from what one has."""
    seen = {}
    pairs = ("ddp", "ddp"), ("fsdp", "fsdp"), ("ddp", "alone fsdp"), ("fsdp", "alone ddp")
    for kind, saved in pairs:
        run = Run(kind, **OPTIONS["sCGQ"]).loaded(folder / f"{saved} 10")
        seen[kind, saved] = run.train(batches(20)[10:]).weights(), run.progress()
    return seen


def run_page(folder: Path) -> None:
    """The code of the documentation page, but for its last words: it makes the process group."""
    page = Path(__file__).parents[1] / "docs" / "distributed.md"
    *blocks, last = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == 5
    assert last.endswith("dist.destroy_process_group()\n")
    os.chdir(folder)
    session: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page.name, "exec"), session)


if __name__ == "__main__":
    torch.set_num_threads(1)
    part, out = globals()[sys.argv[1]], Path(sys.argv[2])
    if part is loading:  # processes are slow to start
        run_page(out)
    else:
        dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    torch.save(part(out), out / f"{sys.argv[1]} {rank()}.pt")
    dist.destroy_process_group()
