"""Bars that say what matters in a terminal of any width."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from test_runner import cell_of

from cgqbench.cli.progress import BAR, EPOCH, SPACES, TIME, Board, shortened
from cgqbench.training.deadline import Deadline
from cgqbench.training.engines.events import Started
from cgqbench.training.meter import BatchProgress

FACTS = (
    *("epoch 3/4", "loss 0.234", "test accuracy 98.12 %", "step 0.123", "momentum 0.567"),
    "batch 300/938",
)
OTHERS = BAR + EPOCH + TIME + SPACES
NO_BAR = str.maketrans("━╸╺", "   ")


def lines(width: int, *methods: str) -> list[str]:
    """What a board shows of cells in their third epoch."""
    file = StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None)
    board = Board(2, console, Deadline.after(1499.5))
    row = {"epoch": 2, "train_loss": 0.5, "test_accuracy": 98.12, "step_size": 1, "momentum": 0}
    for method in methods:
        cell = cell_of(method)
        board.show(cell, Started())
        board.show(cell, row)
        board.show(cell, BatchProgress(3, 300, 938, 0.2344, 0.1234, 0.567))
    console.print(board._bars.get_renderable())
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 132])
@pytest.mark.parametrize("methods", [("sgd", "scgq"), ("search:base=adamw,lr=0.001", "cgq")])
def test_a_line_holds_name_bar_and_time_and_no_fact_is_cut(width, methods):
    first, *others = lines(width, *methods)
    assert len(others) == len(methods)
    assert "0/2" in first
    for line, method in zip(others, methods, strict=True):
        assert len(line.rstrip()) <= width
        name = shortened(f"{method} 0", width - OTHERS)
        assert line.startswith(f"{name} ")
        assert "…" not in line[len(name) :]
        assert "━" in line
        assert ":" in line.split()[-1], "the time that is left"
        *words, _ = line[len(name) :].translate(NO_BAR).split()
        said = [fact for fact in FACTS if fact in " ".join(words)]
        assert said[0] == FACTS[0]
        assert words == " ".join(said).split(), "nothing but whole facts"


def test_at_eighty_columns_a_run_shows_its_loss_and_accuracy_and_the_budget():
    first, line = lines(80, "scgq")
    assert "24:59 of the budget left" in first
    assert all(fact in line for fact in FACTS[:3])


def test_with_room_for_all_everything_is_said():
    _, line = lines(132, "scgq")
    assert all(fact in line for fact in FACTS)


def test_a_name_that_is_too_long_leaves_room_for_epoch_and_time():
    method = "search:max_relative_step=0.005,search_prob=0.0"
    for width, name in ((60, "search:max_relat…b=0.0 0"), (100, f"{method} 0")):
        _, line = lines(width, method)
        assert line.startswith(f"{name} ")
        assert FACTS[0] in line
        assert ":" in line.split()[-1]


def test_a_terminal_with_no_room_shows_the_ends_of_a_name():
    assert shortened("search:max_relative_step=0.005 0", -16) == "s…0.005 0"
    assert shortened("scgq 0", -16) == "scgq 0"


def test_a_name_with_brackets_is_shown_as_it_is():
    _, line = lines(132, "cgq:fit=[red]")
    assert line.startswith("cgq:fit=[red] 0 ")
