"""A training run that stops now and then to look along its search line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rich.console import Console
from rich.progress import track

from cgq import CGQ
from cgqbench.experiments.cell import Cell, task_of
from cgqbench.records.identity import record_path, refuse_differences
from cgqbench.records.record import Line
from cgqbench.tasks.seeds import derived, seed_everything
from cgqbench.training.feed import Feed
from cgqbench.training.landscape import landscape
from cgqbench.training.learner import Learner, closure_of
from cgqbench.training.runner import Conditions, header_of


def record_landscapes(
    cell: Cell, conditions: Conditions, looks: int, restart: bool, console: Console
) -> Path:
    """Train a cell with CGQ and write the landscapes of about `looks` searches; the file.

    A file that is there already is whole, for it is written in one move at the end: it is kept,
    if it is of the same cell, unless `restart`.
    """
    arithmetic = conditions.arithmetic
    arithmetic.set_up(conditions.threads)
    task = task_of(cell)
    feed = Feed(task, arithmetic.device, cell.batch_size, cell.seed)
    learner = Learner(cell, task, feed, arithmetic)
    if not isinstance(learner.optimizer, CGQ):
        raise ValueError(f"{cell.method!r} searches no line that can be drawn. Use cgq or scgq.")
    lines: list[Line] = [{**header_of(learner, conditions), "looks": looks}]
    path = record_path(cell, conditions.records).with_suffix(".landscape.jsonl")
    if path.exists() and not restart:
        with path.open() as file:
            refuse_differences(path, json.loads(file.readline()), lines[0])
        return path
    wanted = moments(cell.epochs * len(feed), looks)
    step = 0
    for epoch in range(1, cell.epochs + 1):
        seed_everything(derived(cell.seed, "noise", epoch))
        learner.model.train()
        batches = track(
            feed.epoch(epoch), f"epoch {epoch}", len(feed), console=console, transient=True
        )
        for inputs, targets in batches:
            step += 1
            closure = closure_of(learner.loss, learner.optimizer, inputs, targets)
            if wanted and step >= wanted[0]:
                seen = landscape(learner.model, learner.optimizer, closure)
                if seen is not None:  # otherwise the next batch that is searched
                    lines.append(seen.as_line(step=step, epoch=epoch))
                    wanted = [moment for moment in wanted if moment > step]
            else:
                learner.optimizer.step(closure)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))
    os.replace(draft, path)
    return path


def moments(steps: int, looks: int) -> list[int]:
    """Steps at which to look: dense at the start, where the landscape is rough, then sparser.

    >>> moments(1000, 4)
    [1, 10, 100, 1000]
    """
    return sorted({round(steps ** (look / (looks - 1))) for look in range(looks)})
