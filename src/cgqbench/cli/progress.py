"""Live progress of running cells: bars on a terminal, a line for each epoch elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import TimeRemainingColumn as TimeLeft
from rich.text import Text

from cgqbench.analysis.measures import judged_by, told
from cgqbench.cli.budget import clock
from cgqbench.experiments.cell import Cell
from cgqbench.records.record import Line
from cgqbench.training.deadline import NEVER, Deadline
from cgqbench.training.engines.events import Ended, Event, Started
from cgqbench.training.meter import BatchProgress


def followed(
    events: Iterable[Event], cells: int, console: Console, deadline: Deadline = NEVER
) -> dict[Cell, str]:
    """Show events until they end; the cells that failed, with the reason."""
    failed: dict[Cell, str] = {}
    with Board(cells, console, deadline) as board:
        for cell, news in events:
            board.show(cell, news)
            if isinstance(news, Ended) and news.error is not None:
                failed[cell] = news.error
    return failed


class BudgetLeft(ProgressColumn):
    """The time left of a budget, which goes on between events, in the bar for all cells."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def render(self, task: Task) -> Text:
        """What stands in a bar's line."""
        return Text(_left_of(self._deadline) if task.fields.get("all") else "")


class Board:
    """A bar for all cells and one for each that is running; a bar's unit is an epoch."""

    def __init__(self, cells: int, console: Console, deadline: Deadline = NEVER) -> None:
        self._console = console
        self._deadline = deadline
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[note]}"),
            TimeLeft(compact=True),
            BudgetLeft(deadline),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("cells", total=cells, note=f"0/{cells}", all=True)
        self._cells = cells
        self._ended = 0
        self._running: dict[Cell, TaskID] = {}
        self._epochs: dict[Cell, float] = {}
        self._quality: dict[Cell, str] = {}

    def __enter__(self) -> Board:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, cell: Cell, news: Started | BatchProgress | Line | Ended) -> None:
        """Bring the board up to date."""
        if isinstance(news, Started):
            self._running[cell] = self._bars.add_task(
                escape(f"{cell.method} {cell.seed}"), total=cell.epochs, note="loading"
            )
        elif isinstance(news, BatchProgress):
            done = news.epoch - 1 + news.batch / news.batches
            words = f"epoch {news.epoch}/{cell.epochs}  batch {news.batch}/{news.batches}"
            self._advance(cell, done, words, news.loss, news.step_size, news.momentum)
        elif isinstance(news, Ended):
            self._end(cell, news)
        else:
            self._row(cell, news)

    def _row(self, cell: Cell, row: Line) -> None:
        measure = judged_by([row])
        value = row[measure]
        self._quality[cell] = "" if value is None else f"  {told(measure, value)}"
        loss, words = row["train_loss"], f"epoch {row['epoch']}/{cell.epochs}"
        self._advance(cell, row["epoch"], words, loss, row["step_size"], row["momentum"])
        if not self._console.is_terminal:
            shown = "not finite" if loss is None else f"{loss:.4f}"
            self._console.print(
                f"{escape(cell.name)}  {words}  train loss {shown}{self._quality[cell]}"
                f"  {_left_of(self._deadline)}".rstrip(),
                highlight=False,
                soft_wrap=True,
            )

    def _advance(self, cell: Cell, epochs: float, words: str, *numbers: float | None) -> None:
        for name, value in zip(("loss", "step", "momentum"), numbers, strict=True):
            words += f"  {name} {value:.3g}" if value is not None else ""
        words += self._quality.get(cell, "")
        self._bars.update(self._running[cell], completed=epochs, note=words)
        self._epochs[cell] = epochs / cell.epochs
        self._bars.update(self._all, completed=self._ended + sum(self._epochs.values()))

    def _end(self, cell: Cell, ended: Ended) -> None:
        if not ended.out_of_time:
            self._ended += 1
            self._epochs.pop(cell, None)
        self._bars.update(self._running.pop(cell), visible=False)
        done = self._ended + sum(self._epochs.values())
        self._bars.update(self._all, completed=done, note=f"{self._ended}/{self._cells}")
        if ended.error is not None:
            last = ended.error.strip().splitlines()[-1]
            self._console.print(f"[red]{escape(cell.name)} failed:[/] {escape(last)}")


def _left_of(deadline: Deadline) -> str:
    return "" if deadline == NEVER else f"{clock(deadline.left)} of the budget left"
