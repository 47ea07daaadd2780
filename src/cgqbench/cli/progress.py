"""Live progress of running cells: bars on a terminal, a line for each epoch elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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

# Their characters: a line of 80 has room for more.
BAR, EPOCH, TIME = 12, len("epoch 200/200"), len("12:34:56")
SPACES = 3  # between the four


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


class Facts(ProgressColumn):
    """What is known of a cell, as much of it as a line has room for, what matters most first.

    In the bar for all cells also the time left of a budget, which goes on between events.
    """

    def __init__(self, deadline: Deadline, room: Callable[[], int]) -> None:
        super().__init__()
        self._deadline, self._room = deadline, room

    def render(self, task: Task) -> Text:
        """What stands in a bar's line."""
        facts = list(task.fields["facts"])
        if task.fields.get("all"):
            facts.append(_left_of(self._deadline))
        return Text("  ".join(fitting(facts, self._room())), no_wrap=True)


def fitting(facts: Iterable[str], room: int) -> list[str]:
    """The first of these that fit side by side, two spaces apart, and any shorter ones after them.

    >>> fitting(["epoch 3/20", "loss 0.234", "test accuracy 98.12 %", "step 0.1"], 32)
    ['epoch 3/20', 'loss 0.234', 'step 0.1']
    """
    kept: list[str] = []
    for fact in facts:
        if fact and len("  ".join([*kept, fact])) <= room:
            kept.append(fact)
    return kept


def shortened(name: str, most: int) -> str:
    """The name, without its middle if it is longer than that.

    >>> shortened("search:max_relative_step=0.005 0", 20)
    'search:max_r…0.005 0'
    """
    tail = 7
    head = max(most - tail - 1, 1)
    return name if len(name) <= head + 1 + tail else f"{name[:head]}…{name[-tail:]}"


class Board:
    """A bar for all cells and one for each that is running; a bar's unit is an epoch."""

    def __init__(self, cells: int, console: Console, deadline: Deadline = NEVER) -> None:
        self._console = console
        self._deadline = deadline
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=BAR),
            Facts(deadline, self._room),
            TimeLeft(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("cells", total=cells, facts=[f"0/{cells}"], all=True)
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
            most = self._console.width - BAR - EPOCH - TIME - SPACES
            self._running[cell] = self._bars.add_task(
                shortened(f"{cell.method} {cell.seed}", most), total=cell.epochs, facts=["loading"]
            )
        elif isinstance(news, BatchProgress):
            done = news.epoch - 1 + news.batch / news.batches
            batch = f"batch {news.batch}/{news.batches}"
            self._advance(cell, done, news.epoch, news.loss, news.step_size, news.momentum, batch)
        elif isinstance(news, Ended):
            self._end(cell, news)
        elif news.get("kind") == "end":
            self._say(f"{cell.name} ended: {news['reason']}")
        else:
            self._row(cell, news)

    def _row(self, cell: Cell, row: Line) -> None:
        measure = judged_by([row])
        value = row[measure]
        self._quality[cell] = "" if value is None else told(measure, value)
        epoch, loss = row["epoch"], row["train_loss"]
        self._advance(cell, epoch, epoch, loss, row["step_size"], row["momentum"])
        if not self._console.is_terminal:
            shown = "not finite" if loss is None else f"{loss:.4f}"
            words = f"epoch {epoch}/{cell.epochs}", f"train loss {shown}", self._quality[cell]
            line = cell.name, *words, _left_of(self._deadline)
            self._say("  ".join(filter(None, line)))

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _advance(
        self,
        cell: Cell,
        done: float,
        epoch: int,
        loss: float | None,
        step: float | None,
        momentum: float | None,
        batch: str = "",
    ) -> None:
        facts = [
            f"epoch {epoch}/{cell.epochs}",
            _named("loss", loss),
            self._quality.get(cell, ""),
            _named("step", step),
            _named("momentum", momentum),
            batch,
        ]
        self._bars.update(self._running[cell], completed=done, facts=facts)
        self._epochs[cell] = done / cell.epochs
        self._bars.update(self._all, completed=self._ended + sum(self._epochs.values()))

    def _room(self) -> int:
        """The characters that names, bars and times leave in a line."""
        names = max(len(task.description) for task in self._bars.tasks if task.visible)
        return self._console.width - names - BAR - TIME - SPACES

    def _end(self, cell: Cell, ended: Ended) -> None:
        if not ended.out_of_time:
            self._ended += 1
            self._epochs.pop(cell, None)
        self._bars.update(self._running.pop(cell), visible=False)
        done = self._ended + sum(self._epochs.values())
        self._bars.update(self._all, completed=done, facts=[f"{self._ended}/{self._cells}"])
        if ended.error is not None:
            last = ended.error.strip().splitlines()[-1]
            self._console.print(f"[red]{escape(cell.name)} failed:[/] {escape(last)}")


def _named(name: str, value: float | None) -> str:
    return "" if value is None else f"{name} {value:.3g}"


def _left_of(deadline: Deadline) -> str:
    return "" if deadline == NEVER else f"{clock(deadline.left)} of the budget left"
