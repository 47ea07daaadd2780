"""Cells in processes of this machine, one process a cell: if one dies, the others go on."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from cgqbench.cell import Cell
from cgqbench.data import MissingData
from cgqbench.engines.news import Ended, Event, Started
from cgqbench.record import RecordError
from cgqbench.runner import Conditions, run_cell
from cgqbench.task_file import TaskError


def local(cells: Sequence[Cell], conditions: Conditions, jobs: int) -> Iterator[Event]:
    """Run cells, `jobs` at a time, and yield what happens to them."""
    context = _context()
    waiting = deque(cells)
    running: dict[Connection, tuple[Cell, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.popleft()
                connection, process = _begun(context, cell, conditions)
                running[connection] = cell, process
                yield Event(cell, Started())
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                cell, process = running[ready]
                try:
                    news = ready.recv()
                except EOFError:  # it died without a word
                    process.join()
                    news = Ended(f"its process ended with exit code {process.exitcode}")
                yield Event(cell, news)
                if isinstance(news, Ended):
                    del running[ready]
                    ready.close()
                    process.join()
    finally:
        for _, process in running.values():
            process.terminate()
            process.join()


def _context() -> BaseContext:
    """Where the system can do it, processes fork from a server that has torch loaded already."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cgqbench.runner"])
    return context


def _begun(context: Any, cell: Cell, conditions: Conditions) -> tuple[Connection, BaseProcess]:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(cell, conditions, theirs), daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends when the process does
    return ours, process


def _child(cell: Cell, conditions: Conditions, connection: Connection) -> None:
    # The parent decides what an interrupt means. If the parent is gone, so is the pipe, and the
    # next word that cannot be sent ends this process: nobody trains on unseen.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run_cell(cell, conditions, connection.send)
    except BrokenPipeError:
        return
    except (RecordError, MissingData, TaskError) as error:  # whose message says all
        connection.send(Ended(str(error)))
    except Exception:
        connection.send(Ended(traceback.format_exc()))
    else:
        connection.send(Ended())
