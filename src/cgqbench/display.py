"""Live progress of running cells: bars on a terminal, a line for each epoch elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.progress import TimeRemainingColumn as TimeLeft

from cgqbench.cell import Cell
from cgqbench.engines.news import Ended, Event, Started
from cgqbench.meter import Glance
from cgqbench.record import Line


def followed(events: Iterable[Event], cells: int, console: Console) -> dict[Cell, str]:
    """Show events until they end; the cells that failed, with the reason."""
    failed: dict[Cell, str] = {}
    with Board(cells, console) as board:
        for cell, news in events:
            board.show(cell, news)
            if isinstance(news, Ended) and news.error is not None:
                failed[cell] = news.error
    return failed


class Board:
    """A bar for all cells and one for each that is running, in steps of the optimizer."""

    def __init__(self, cells: int, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[note]}"),
            TimeLeft(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("cells", total=cells, note=f"0/{cells}")
        self._cells = cells
        self._ended = 0
        self._running: dict[Cell, TaskID] = {}
        self._accuracy: dict[Cell, float | None] = {}

    def __enter__(self) -> Board:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, cell: Cell, news: Started | Glance | Line | Ended) -> None:
        """Bring the board up to date."""
        if isinstance(news, Started):
            self._running[cell] = self._bars.add_task(
                escape(f"{cell.method} {cell.seed}"), total=None, note="loading"
            )
        elif isinstance(news, Glance):
            self._glance(cell, news)
        elif isinstance(news, Ended):
            self._end(cell, news)
        else:
            self._row(cell, news)

    def _glance(self, cell: Cell, glance: Glance) -> None:
        note = f"epoch {glance.epoch}/{cell.epochs}  loss {glance.loss:.4f}"
        for name, value in (("step", glance.step_size), ("momentum", glance.momentum)):
            note += f"  {name} {value:.3g}" if value is not None else ""
        accuracy = self._accuracy.get(cell)
        note += f"  test {accuracy:.2f} %" if accuracy is not None else ""
        self._bars.update(
            self._running[cell],
            total=cell.epochs * glance.batches,
            completed=(glance.epoch - 1) * glance.batches + glance.batch,
            note=note,
        )

    def _row(self, cell: Cell, row: Line) -> None:
        self._accuracy[cell] = row["test_accuracy"]
        if not self._console.is_terminal:
            loss, accuracy = row["train_loss"], row["test_accuracy"]
            self._console.print(
                f"{escape(cell.name)}  epoch {row['epoch']}/{cell.epochs}"
                + (f"  train loss {loss:.4f}" if loss is not None else "  train loss not finite")
                + (f"  test accuracy {accuracy:.2f} %" if accuracy is not None else ""),
                highlight=False,
                soft_wrap=True,
            )

    def _end(self, cell: Cell, ended: Ended) -> None:
        self._ended += 1
        self._bars.update(self._running.pop(cell), visible=False)
        self._bars.update(self._all, advance=1, note=f"{self._ended}/{self._cells}")
        if ended.error is not None:
            last = ended.error.strip().splitlines()[-1]
            self._console.print(f"[red]{escape(cell.name)} failed:[/] {escape(last)}")
