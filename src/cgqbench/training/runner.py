"""One cell from start to end: its record, its checkpoints, and where it continues."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import torch

from cgqbench.experiments.cell import Cell, task_of
from cgqbench.methods import chosen
from cgqbench.records.continuing import continued_from
from cgqbench.records.identity import identity_of, record_path, refuse_differences
from cgqbench.records.latest_state import LatestState
from cgqbench.records.machine import hardware, versions
from cgqbench.records.record import Line, Record, RecordError
from cgqbench.tasks.task import Task
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.dead_network import ENOUGH, dead_since, trained_weights
from cgqbench.training.deadline import NEVER, Deadline, TimeUpError
from cgqbench.training.epoch import train_epoch
from cgqbench.training.evaluation import all_finite, evaluated
from cgqbench.training.feed import Feed
from cgqbench.training.learner import Learner, parameter_count
from cgqbench.training.meter import BatchProgress
from cgqbench.training.tensorboard_log import tensorboard_log


@dataclass(frozen=True)
class Conditions:
    """Where and how cells are run; none of it is part of what a cell is."""

    records: Path
    device: str = "cpu"
    threads: int = 1
    resume: bool = False
    command: str = ""
    tensorboard: Path | None = None
    fast: bool = False
    graphs: bool = True
    deadline: Deadline = NEVER

    @property
    def arithmetic(self) -> Arithmetic:
        """How passes are computed."""
        return Arithmetic(torch.device(self.device), self.fast)


FINISHED: Line = {"kind": "end", "status": "finished"}
CUT_SHORT: Line = {"kind": "end", "status": "diverged"}
Tell = Callable[[BatchProgress | Line], None]


def run_cell(cell: Cell, conditions: Conditions, tell: Tell = lambda news: None) -> bool:
    """Run a cell, or what is left of it; `tell` hears of batches now and then and of every row.

    It hears too why a run ended that did not finish. Returns whether it came to its end: False
    if the deadline was first, and `resume` goes on from there.
    """
    arithmetic = conditions.arithmetic
    with Record(record_path(cell, conditions.records)) as record:
        arithmetic.set_up(conditions.threads)  # loading data computes too
        task = task_of(cell)
        if record.ended:
            check_same(cell, task, record, arithmetic)
            return True
        deadline, seconds = conditions.deadline, _last_epoch_seconds(record)
        if not deadline.fits(seconds) and _cut_short(record) is None:
            return False
        feed = Feed(task, arithmetic.device, cell.batch_size, cell.seed)
        graphs = conditions.graphs and arithmetic.device.type == "cuda"
        learner = Learner(cell, task, feed, arithmetic, graphs=graphs)
        header = header_of(learner, conditions)
        done = _continued(record, header, learner, conditions.resume)
        if not record.lines:
            record.append(header)
        board = tensorboard_log(conditions.tensorboard, cell)
        with board as log, LatestState(record.checkpoint) as latest:
            for row in record.lines[1:]:
                log(row)
            while done < cell.epochs and _cut_short(record) is None:
                until = deadline.sooner(latest.seconds_to_write)
                if not until.fits(seconds):
                    return False
                began = time.perf_counter()
                try:
                    row = _epoch(learner, record, latest, done + 1, _heeding(until, tell))
                except TimeUpError:
                    return False
                done, seconds = done + 1, time.perf_counter() - began
                log(row)
                tell(row)
            reason = _cut_short(record)
            record.append(FINISHED if reason is None else {**CUT_SHORT, "reason": reason})
            latest.discard()
        if reason is not None:
            tell(record.lines[-1])
    return True


def header_of(learner: Learner, conditions: Conditions) -> Line:
    """A record's first line: what the cell is, and what it was run on."""
    cell, device = learner.cell, torch.device(conditions.device)
    return {
        "kind": "cell",
        **identity_of(cell, learner.task),
        "label": chosen(cell.method, cell.network).label,
        "parameters": parameter_count(learner.model),
        "batches": len(learner.feed),
        "device": device.type,
        "hardware": hardware(device),
        "arithmetic": conditions.arithmetic.name,
        **conditions.arithmetic.kernels,
        "threads": conditions.threads,
        "versions": versions(),
        "command": conditions.command,
    }


def check_same(cell: Cell, task: Task, record: Record, arithmetic: Arithmetic) -> None:
    """Refuse a record of another cell, or of another arithmetic, under the same name."""
    wanted = {**identity_of(cell, task), "arithmetic": arithmetic.name}
    cure = f"Remove {record.path} to run this one again, or add --restart for all of this command."
    refuse_differences(record.path, record.header or {}, wanted, cure)


def _heeding(deadline: Deadline, tell: Tell) -> Tell:
    """Tell as before, but break an epoch off when the time is up: what is past it may be nobody's.

    The epoch is lost. That happens to one that took longer than the one before, or was the first.
    """

    def heeding(news: BatchProgress | Line) -> None:
        tell(news)
        if deadline.past:
            raise TimeUpError

    return heeding


def _last_epoch_seconds(record: Record) -> float | None:
    """What the last epoch took, training and evaluation, if there was one."""
    *_, last = None, *record.times
    return float(last["train_seconds"] + last["evaluation_seconds"]) if last else None


def _epoch(learner: Learner, record: Record, latest: LatestState, epoch: int, tell: Tell) -> Line:
    """Train, evaluate and record one epoch.

    The state, which holds the row, comes first: whatever happens between the two, the row can be
    written.
    """
    before = [each.detach().clone() for each in trained_weights(learner.model)]
    began = time.perf_counter()
    trained = train_epoch(learner, epoch, tell)
    trained_at = time.perf_counter()
    tested = evaluated(learner, epoch)
    ended = time.perf_counter()
    if not all_finite(learner.model):
        tested["test_loss"] = None
    row = {"kind": "epoch", "epoch": epoch, **trained, **tested}
    if dead_since(before, learner):
        row["dead"] = True
    times = {
        "epoch": epoch,
        "train_seconds": round(trained_at - began, 4),
        "evaluation_seconds": round(ended - trained_at, 4),
    }
    latest.keep({"row": row, "times": times, "learner": learner.state_dict()}, epoch)
    record.append(row)
    record.append_time(times)
    return row


def _continued(record: Record, header: Line, learner: Learner, resume: bool) -> int:
    """Bring the learner to where the record stands; how many epochs are done."""
    if not record.lines:
        record.restart()  # of one that was removed a checkpoint and times may lie there
        return 0
    if not resume:
        raise RecordError(
            f"{record.path} is unfinished ({record.epochs} epochs). Add --resume to continue it, "
            "or --restart to begin again."
        )
    # Not with --restart, which discards the finished runs of the command as well.
    cure = f"Remove {record.path} to run this one again; finished runs stay."
    refuse_differences(record.path, record.header or {}, header, cure)
    checkpoint = record.checkpoint
    if not checkpoint.exists():
        if record.epochs:
            raise RecordError(
                f"{checkpoint.path} is missing, so {record.path} cannot be continued. {cure}"
            )
        return 0
    names, place = {"row", "times", "learner"}, learner.arithmetic.device
    saved = continued_from(checkpoint, names, record.path, place, cure)
    row: Line = saved["row"]
    if row["epoch"] > record.epochs + 1:
        raise RecordError(
            f"{checkpoint.path} is of epoch {row['epoch']}, {record.path} holds "
            f"{record.epochs}. {cure}"
        )
    if row["epoch"] == record.epochs + 1:  # stopped between checkpoint and row
        record.append(row)
    record.cut(row["epoch"])  # killed between two checkpoints: what is cut off comes again
    if saved["times"] not in record.times:  # stopped between row and time
        record.append_time(saved["times"])
    learner.load_state_dict(saved["learner"])
    return record.epochs


def _cut_short(record: Record) -> str | None:
    """Why the last epoch leaves nothing to train; a batch that its method left out is no harm."""
    row = record.lines[-1] if record.epochs else {}
    if row.get("kind") != "epoch":
        return None
    if row["test_loss"] is None or (row["train_loss"] is None and not row["skipped"]):
        return f"the loss or the parameters were not finite in epoch {record.epochs}"
    dead = len(list(takewhile(lambda row: row.get("dead"), reversed(record.lines))))
    header = record.header or {}
    if dead and dead * header["batches"] * header["batch_size"] >= ENOUGH:
        since = f"from epoch {record.epochs - dead + 1} to" if dead > 1 else "in"
        return (
            f"the network was dead {since} epoch {record.epochs}: it has one answer for every "
            "input, and no gradient that could change that"
        )
    return None
