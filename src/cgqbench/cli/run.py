"""What the commands do with cells: check everything, run what is left, show what came out."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.markup import escape

from cgqbench.analysis.comparison import several
from cgqbench.cli.budget import TOO_SHORT, going_on, reached, seconds_of, what_is_left
from cgqbench.cli.progress import followed
from cgqbench.experiments.cell import Cell, task_of
from cgqbench.methods import chosen
from cgqbench.methods.schedules import Budget
from cgqbench.records.identity import record_path
from cgqbench.records.reading import runs
from cgqbench.records.record import Record, RecordError
from cgqbench.tasks.task import Task
from cgqbench.tasks.task_file import try_out
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.deadline import NEVER, Deadline
from cgqbench.training.engines import ENGINES
from cgqbench.training.runner import Conditions, check_same

# Options whose values are no matter of what a record holds.
UNRECORDED = ("--budget", "--out")


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
    fast: bool
    graphs: bool

    def within(self, budget: str, cells: Sequence[Cell]) -> None:
        """Run as much of the cells as a budget of time allows; the next time it goes on."""
        replace(self, resume=True).cells(cells, Deadline.after(seconds_of(budget)))

    def cells(self, cells: Sequence[Cell], deadline: Deadline = NEVER) -> None:
        """Run cells, until the deadline if there is one; show and write what came out."""
        if self.engine not in ENGINES:
            raise ValueError(f"There is no engine {self.engine!r}. Choose from: local, ray.")
        if self.restart and self.resume and deadline == NEVER:
            raise ValueError("--restart discards what --resume goes on from. Give one of them.")
        console = Console()
        device = device_of(self.device)
        conditions = Conditions(
            self.out / "records",
            device,
            self.threads,
            self.resume,
            command_line(),
            self.out / "tensorboard" if self.tensorboard else None,
            self.fast,
            self.graphs,
            deadline,
        )
        arithmetic = Arithmetic(torch.device(device), self.fast)
        left, others = self._unfinished(cells, arithmetic)
        if others and deadline == NEVER:
            raise others[0]
        if len(left) < len(cells):
            console.print(f"{len(cells) - len(left)} of {len(cells)} runs are finished already.")
        if others:  # as records of other machines: what is left is worth the time more
            kept = f"{several(len(others), 'finished run')}, not as asked for now, left as found"
            console.print(f"{kept}; the first: {others[0]}", soft_wrap=True, markup=False)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        jobs = self.jobs or (max(1, (cores or 1) // self.threads) if device == "cpu" else 1)
        before = reached(cells, conditions.records) if deadline != NEVER else None
        with going_on_later(console, restart=self.restart):
            events = ENGINES[self.engine](left, conditions, jobs)
            failed = followed(events, len(left), console, deadline)
        for cell, reason in failed.items():
            console.rule(escape(cell.name), style="red")
            console.print(escape(reason), soft_wrap=True)
        if len(failed) < len(cells) and runs(self.out / "records"):
            from cgqbench.output.outcome import write_outcome  # which the cells' processes spare

            write_outcome(self.out / "records", self.out, console)
        if deadline != NEVER and (words := what_is_left(cells, conditions.records)):
            if not failed and reached(cells, conditions.records) == before:
                words = f"{words}. {TOO_SHORT}"
            else:
                words = f"{words}; to go on: {going_on()}"
            console.print(words, soft_wrap=True, highlight=False, markup=False)
        if failed:
            raise typer.Exit(1)

    def _unfinished(
        self, cells: Sequence[Cell], arithmetic: Arithmetic
    ) -> tuple[list[Cell], list[RecordError]]:
        """The cells left to do, and what is wrong with finished ones.

        Whatever else can be wrong is raised before anything is run or lost.
        """
        tasks: dict[tuple[str, str, str | None], Task] = {}
        for cell in cells:
            problem = cell.dataset, cell.network, cell.task
            if problem not in tasks:
                tasks[problem] = _tried_out(cell)
            if cell.seed == cells[0].seed:  # the others differ in nothing that could be wrong
                method = chosen(cell.method, cell.network)
                method.optimizer(tasks[problem].model(), Budget(cell.epochs, 1), cell.seed)
        left, others = list[Cell](), list[RecordError]()
        for cell in cells:  # one open at a time: there may be more than a process may open
            task = tasks[cell.dataset, cell.network, cell.task]
            with self._record(cell) as record:
                if self.restart or not record.lines:
                    left.append(cell)
                elif record.ended:
                    try:
                        check_same(cell, task, record, arithmetic)
                    except RecordError as other:
                        others.append(other)
                    else:
                        record.checkpoint.remove()  # killed after its last line
                elif self.resume:
                    left.append(cell)
                else:
                    raise RecordError(
                        f"{record.path} is unfinished ({record.epochs} of {cell.epochs} epochs). "
                        "Add --resume to continue, or --restart to begin again."
                    )
        for cell in left if self.restart else ():
            with self._record(cell) as record:
                record.restart()
        return left, others

    def _record(self, cell: Cell) -> Record:
        return Record(record_path(cell, self.out / "records"))


def _tried_out(cell: Cell) -> Task:
    task = task_of(cell)
    if cell.task is not None:
        try_out(task, Path(cell.task), cell.batch_size)
    return task


def device_of(name: str) -> str:
    """The device that a name means here; one that is not there is refused."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"Device {name!r} cannot be used: {reason} Try --device cpu.") from None
    return name


@contextmanager
def going_on_later(console: Console, *, restart: bool) -> Iterator[None]:
    """When interrupted by Ctrl-C, or by SIGTERM as a cluster's jobs are, say how to go on."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        instead = " in place of --restart" if restart else ""
        console.print(
            f"Stopped. The same command with --resume{instead} goes on after the last whole epoch."
        )
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def command_line() -> str:
    """The command that makes these records: wherever they are put, and in one go or in several."""
    kept, words = ["cgq"], iter(sys.argv[1:])
    for word in words:
        name, given, _ = word.partition("=")
        if name not in UNRECORDED:
            kept.append(word)
        elif not given:  # the value is the next word
            next(words, None)
    return " ".join(word for word in kept if word != "--resume")


@contextmanager
def clear_errors() -> Iterator[None]:
    """Show errors that name their cure as a sentence, not as a traceback."""
    try:
        yield
    except (ValueError, OSError, ImportError, RecordError) as error:
        Console(stderr=True).print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from None
