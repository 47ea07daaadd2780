"""Cells in processes of this machine, one process a cell: if one dies, the others go on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from cgqbench.experiments.cell import Cell
from cgqbench.records.record import RecordError
from cgqbench.tasks.data import MissingData
from cgqbench.tasks.task import TaskError
from cgqbench.training.engines.events import Ended, Event, Started
from cgqbench.training.engines.shared_gpu import shared_gpu
from cgqbench.training.runner import Conditions, run_cell


def local(cells: Sequence[Cell], conditions: Conditions, jobs: int) -> Iterator[Event]:
    """Run cells, `jobs` at a time, and yield what happens to them."""
    alone = jobs == 1 or not conditions.device.startswith("cuda")
    sharing: AbstractContextManager[dict[str, str]] = nullcontext({}) if alone else shared_gpu()
    with sharing as environment:
        yield from _run(cells, conditions, jobs, environment)


def _run(
    cells: Sequence[Cell], conditions: Conditions, jobs: int, environment: dict[str, str]
) -> Iterator[Event]:
    context = _context()
    waiting = deque(cells)
    running: dict[Connection, tuple[Cell, BaseProcess]] = {}
    try:
        while waiting or running:
            if conditions.deadline.past:
                waiting.clear()
            while waiting and len(running) < jobs:
                cell = waiting.popleft()
                connection, process = _begun(context, cell, conditions, environment)
                running[connection] = cell, process
                yield Event(cell, Started())
            for ready in wait(list(running)) if running else ():
                assert isinstance(ready, Connection)
                cell, process = running[ready]
                try:
                    news = ready.recv()
                except EOFError:  # it died without a word
                    process.join()
                    news = Ended(f"its process ended with exit code {process.exitcode}")
                yield Event(cell, news)
                if isinstance(news, Ended):
                    if news.out_of_time:  # one begun now would be one more that is unfinished
                        waiting.clear()
                    del running[ready]
                    ready.close()
                    process.join()
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()


def _context() -> BaseContext:
    """Where the system can do it, processes fork from a server that has torch loaded already."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cgqbench.training.runner"])
    return context


def _begun(
    context: Any, cell: Cell, conditions: Conditions, environment: dict[str, str]
) -> tuple[Connection, BaseProcess]:
    ours, theirs = context.Pipe(duplex=False)
    arguments = cell, conditions, environment, theirs
    process = context.Process(target=_child, args=arguments, daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends when the process does
    return ours, process


def _end_in_order(number: int, frame: object) -> None:
    """Leave all blocks, so that the state of the last epoch is written, whoever asks again."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def _child(
    cell: Cell, conditions: Conditions, environment: dict[str, str], connection: Connection
) -> None:
    # The parent decides what an interrupt means. If the parent is gone, so is the pipe, and the
    # next word that cannot be sent ends this process: nobody trains on unseen.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_in_order)
    os.environ.update(environment)  # before CUDA is first used
    try:
        finished = run_cell(cell, conditions, connection.send)
    except BrokenPipeError:
        return
    except (RecordError, MissingData, TaskError) as error:  # whose message says all
        connection.send(Ended(str(error)))
    except Exception:
        connection.send(Ended(traceback.format_exc()))
    else:
        connection.send(Ended(out_of_time=not finished))
