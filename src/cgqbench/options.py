"""The options that commands share, and what they come to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape

from cgqbench.cell import Cell
from cgqbench.display import followed
from cgqbench.engines import ENGINES
from cgqbench.methods import chosen
from cgqbench.outcome import write_outcome
from cgqbench.record import Record, RecordError
from cgqbench.runner import Conditions, check_same, record_path
from cgqbench.task import task_of

Methods = Annotated[
    list[str], typer.Option("-m", "--method", help="A method; may be given several times.")
]
Dataset = Annotated[str, typer.Option(help="mnist, fashion_mnist, svhn, cifar10 or cifar100.")]
Network = Annotated[
    str, typer.Option(help="mlp, vgg16, resnet20, resnet110, resnet164 or densenet100.")
]
Task = Annotated[
    Path | None,
    typer.Option(help="A Python file of yours with model(), data() and, if it likes, loss()."),
]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, from 0 on.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples a batch.")]
Average = Annotated[
    bool, typer.Option(help="Also test the anytime average of the weights (no extra training).")
]
Out = Annotated[Path, typer.Option(help="Where records, plots and the page go.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue unfinished runs.")]
Restart = Annotated[
    bool, typer.Option("--restart", help="Discard the records of these runs and begin again.")
]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Runs at a time. Default: one a core; one on a GPU.")
]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of each run.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Engine = Annotated[str, typer.Option(help="local (processes here) or ray (a Ray cluster).")]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Also log for TensorBoard, below the out folder.")
]


@dataclass(frozen=True)
class Run:
    """How the cells of a command are run."""

    out: Path
    resume: bool
    restart: bool
    jobs: int | None
    threads: int
    device: str
    engine: str
    tensorboard: bool

    def cells(self, cells: Sequence[Cell]) -> None:
        """Run cells, then show and write what came out."""
        if self.engine not in ENGINES:
            raise ValueError(f"There is no engine {self.engine!r}. Choose from: local, ray.")
        console = Console()
        device = device_of(self.device)
        conditions = Conditions(
            self.out / "records",
            device,
            self.threads,
            self.resume,
            command_line(),
            self.out / "tensorboard" if self.tensorboard else None,
        )
        left = self._unfinished(cells)
        if len(left) < len(cells):
            console.print(f"{len(cells) - len(left)} of {len(cells)} runs are finished already.")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        jobs = self.jobs or (max(1, (cores or 1) // self.threads) if device == "cpu" else 1)
        try:
            events = ENGINES[self.engine](left, conditions, jobs)
            failed = followed(events, len(left), console)
        except KeyboardInterrupt:
            console.print("Stopped. The same command with --resume goes on from here.")
            raise typer.Exit(130) from None
        for cell, reason in failed.items():
            console.rule(escape(cell.name), style="red")
            console.print(escape(reason), soft_wrap=True)
        if len(failed) < len(cells):
            write_outcome(self.out, self.out, console)
        if failed:
            raise typer.Exit(1)

    def _unfinished(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells left to do. Everything that could be wrong is found before anything runs."""
        for cell in {(c.dataset, c.network, c.task): c for c in cells}.values():
            task_of(cell).model()
        left = []
        for cell in cells:
            chosen(cell.method, cell.network)
            with Record(record_path(cell, self.out / "records")) as record:
                if self.restart:
                    record.restart()
                if record.ended:
                    check_same(cell, record)
                    continue
                if record.lines and not self.resume:
                    raise RecordError(
                        f"{record.path} is unfinished ({record.epochs} of {cell.epochs} epochs). "
                        "Add --resume to continue, or --restart to begin again."
                    )
            left.append(cell)
        return left


def device_of(name: str) -> str:
    """The device that a name means here; one that is not there is refused."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"Device {name!r} cannot be used: {reason} Try --device cpu.") from None
    return name


def command_line() -> str:
    """The command that makes these records, whether it was interrupted or not."""
    return " ".join(["cgq", *(word for word in sys.argv[1:] if word not in ("--resume",))])


@contextmanager
def clear_errors() -> Iterator[None]:
    """Show errors that name their cure as a sentence, not as a traceback."""
    try:
        yield
    except (ValueError, OSError, ImportError, RecordError) as error:
        Console(stderr=True).print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from None
