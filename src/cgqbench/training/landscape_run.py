"""A training run that stops now and then to look along its search line."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from rich.progress import track

from cgq import CGQ
from cgqbench.experiments.cell import Cell, task_of
from cgqbench.records.checkpoint import Checkpoint
from cgqbench.records.continuing import continued_from
from cgqbench.records.identity import RESTART, identity_of, record_path, refuse_differences
from cgqbench.records.latest_state import LatestState
from cgqbench.records.record import Line, RecordError, append, hold, parsed
from cgqbench.tasks.seeds import derived, seed_everything
from cgqbench.tasks.task_file import try_out
from cgqbench.training.feed import Feed
from cgqbench.training.landscape import landscape
from cgqbench.training.learner import Learner, closure_of
from cgqbench.training.runner import Conditions, header_of


def record_landscapes(
    cell: Cell, conditions: Conditions, looks: int, restart: bool, console: Console
) -> Path:
    """Train a cell with CGQ and write the landscapes of about `looks` searches; the file.

    A file that is there already is whole, for it is written in one move at the end: it is kept,
    if it is of the same cell, unless `restart`. Until then a checkpoint has what was seen, and
    `conditions.resume` goes on from its epoch.
    """
    arithmetic = conditions.arithmetic
    arithmetic.set_up(conditions.threads)
    task = task_of(cell)
    if cell.task is not None:
        try_out(task, Path(cell.task), cell.batch_size)
    feed = Feed(task, arithmetic.device, cell.batch_size, cell.seed)
    learner = Learner(cell, task, feed, arithmetic)
    if not isinstance(learner.optimizer, CGQ):
        raise ValueError(f"{cell.method!r} searches no line that can be drawn. Use cgq or scgq.")
    header: Line = {**header_of(learner, conditions), "looks": looks}
    path = record_path(cell, conditions.records).with_suffix(".landscape.jsonl")
    checkpoint, draft = Checkpoint(path.with_suffix(".ckpt")), path.with_suffix(".draft")
    if path.exists() and not restart:
        first, *_ = parsed(path, RESTART) or [{}]
        wanted = {**identity_of(cell, task), "arithmetic": arithmetic.name, "looks": looks}
        refuse_differences(path, first, wanted)
        checkpoint.remove()  # killed after its last look
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with LatestState(checkpoint) as latest:
        with draft.open("ab") as file:
            hold(file, path)
            if restart:
                checkpoint.remove()
                path.unlink(missing_ok=True)
            done, lines = _continued(checkpoint, path, header, learner, conditions.resume)
            for epoch in range(done + 1, cell.epochs + 1):
                lines += _epoch(learner, epoch, looks, lines[-1].get("step", 0), console)
                if epoch < cell.epochs:
                    state = {"epoch": epoch, "lines": lines, "learner": learner.state_dict()}
                    latest.keep(state, epoch)
            file.truncate(0)
            for line in lines:
                append(file, line)
        os.replace(draft, path)
        latest.discard()
    return path


def _continued(
    checkpoint: Checkpoint, path: Path, header: Line, learner: Learner, resume: bool
) -> tuple[int, list[Line]]:
    """Bring the learner to where the checkpoint stands: the epochs done, and what was seen."""
    if not checkpoint.exists():
        return 0, [header]
    names, place = {"epoch", "lines", "learner"}, learner.arithmetic.device
    saved = continued_from(checkpoint, names, path, place, RESTART)
    if not resume:
        raise RecordError(
            f"{path} is unfinished ({saved['epoch']} of {header['epochs']} epochs). Add --resume "
            "to continue, or --restart to begin again."
        )
    refuse_differences(path, saved["lines"][0], header)
    learner.load_state_dict(saved["learner"])
    return saved["epoch"], saved["lines"]


def _epoch(
    learner: Learner, epoch: int, looks: int, last_look: int, console: Console
) -> list[Line]:
    """Train for an epoch; what was seen on the way, after the last look."""
    feed, model, optimizer = learner.feed, learner.model, learner.optimizer
    assert isinstance(optimizer, CGQ)
    wanted = [each for each in moments(learner.cell.epochs * len(feed), looks) if each > last_look]
    seed_everything(derived(learner.cell.seed, "noise", epoch))
    model.train()
    batches = track(feed.epoch(epoch), f"epoch {epoch}", len(feed), console=console, transient=True)
    lines = []
    for step, (inputs, targets) in enumerate(batches, 1 + (epoch - 1) * len(feed)):
        closure = closure_of(learner.loss, optimizer, inputs, targets)
        if wanted and step >= wanted[0]:
            seen = landscape(model, optimizer, closure)
            if seen is not None:  # otherwise the next batch that is searched
                lines.append(seen.as_line(step=step, epoch=epoch))
                wanted = [moment for moment in wanted if moment > step]
        else:
            optimizer.step(closure)
    return lines


def moments(steps: int, looks: int) -> list[int]:
    """Steps at which to look: dense at the start, where the landscape is rough, then sparser.

    >>> moments(1000, 4)
    [1, 10, 100, 1000]
    """
    return sorted({round(steps ** (look / (looks - 1))) for look in range(looks)})
