"""Cells on a Ray cluster. The folder of records must be one that every machine of it can write."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cgqbench.experiments.cell import Cell
from cgqbench.records.identity import record_path
from cgqbench.records.reading import read_run
from cgqbench.records.record import Line
from cgqbench.training.engines.events import Ended, Event, Started
from cgqbench.training.runner import Conditions, run_cell

# Seconds between two looks at the records.
PATIENCE = 1.0
# Seconds that a cell has for its last checkpoint when it is told to stop.
LAST_WRITE = 20.0


def ray_cluster(cells: Sequence[Cell], conditions: Conditions, jobs: int) -> Iterator[Event]:
    """Run cells on the cluster that Ray finds (`ray.init()`), or on one it starts here.

    At most `jobs` at a time share a GPU; on CPUs Ray itself decides how many fit.
    """
    try:
        import ray
    except ImportError:
        raise ImportError(
            'Ray is not installed. Install it (pip install "cgq[ray]"), or leave out --engine ray.'
        ) from None
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, include_dashboard=False)
    # A relative path would be another one on another machine.
    board = conditions.tensorboard
    conditions = replace(
        conditions,
        records=conditions.records.resolve(),
        tensorboard=board.resolve() if board else None,
    )
    gpus = 1 / jobs if conditions.device.startswith("cuda") else 0
    remote = ray.remote(num_cpus=conditions.threads, num_gpus=gpus, max_retries=0)(_remote_cell)
    running: dict[Any, Cell] = {}
    try:
        told = {cell: len(_rows(cell, conditions)) for cell in cells}
        for cell in cells:
            there = replace(cell, task=str(Path(cell.task).resolve())) if cell.task else cell
            running[remote.remote(there, conditions)] = cell
            yield Event(cell, Started())
        while running:
            done, _ = ray.wait(list(running), timeout=PATIENCE)
            for cell in running.values():
                yield from _new_rows(cell, conditions, told)
            for ended in done:
                yield Event(running.pop(ended), _end_of(ray, ended))
    finally:
        _stop(ray, list(running))
        if started:
            ray.shutdown()


def _stop(ray: Any, tasks: list[Any]) -> None:
    """Tell cells to stop, which they do once the last epoch's state is written; then force them."""
    if not tasks:  # none to wait for, which Ray refuses to do
        return
    for task in tasks:
        ray.cancel(task)
    _, left = ray.wait(tasks, num_returns=len(tasks), timeout=LAST_WRITE)
    for task in left:
        ray.cancel(task, force=True)


def _remote_cell(cell: Cell, conditions: Conditions) -> Ended:
    try:
        return Ended(out_of_time=not run_cell(cell, conditions))
    except Exception:
        return Ended(traceback.format_exc())


def _new_rows(cell: Cell, conditions: Conditions, told: dict[Cell, int]) -> Iterator[Event]:
    rows = _rows(cell, conditions)
    # Fewer than before where a killed run goes on from an earlier checkpoint.
    new = rows[min(told[cell], len(rows)) :]
    told[cell] = len(rows)
    for row in new:
        yield Event(cell, row)


def _rows(cell: Cell, conditions: Conditions) -> list[Line]:
    path = record_path(cell, conditions.records)
    run = read_run(path) if path.exists() else None
    if run is None:
        return []
    # The end too where it says why: what `run_cell` tells of where it runs.
    return [*run.epochs, run.end] if run.end and "reason" in run.end else run.epochs


def _end_of(ray: Any, task: Any) -> Ended:
    try:
        ended: Ended = ray.get(task)
    except ray.exceptions.RayError as failure:  # the worker died
        return Ended(str(failure))
    return ended
