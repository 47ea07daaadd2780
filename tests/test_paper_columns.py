"""The columns of the paper with a schedule and LineSearch beside them, in their pictures too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from made_records import training, write
from matplotlib.figure import Figure

from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.findings import findings
from cgqbench.analysis.paper_columns import paper_columns
from cgqbench.output import figures
from cgqbench.records.reading import runs

COLUMN: dict[str, Any] = {"dataset": "cifar10", "network": "resnet164"}
EPOCHS = 4


@pytest.fixture
def column(tmp_path: Path) -> Path:
    for method in ("sgd", "cgq"):
        rows = training(0, EPOCHS, 0.3, 90.0)
        write(tmp_path, rows, experiment="table2", method=method, arithmetic="bf16", **COLUMN)
    for method in ("sgd_cosine", "prodigy", "search"):
        rows = training(0, EPOCHS, 0.3, 92.0)
        write(tmp_path, rows, experiment="today2", method=method, arithmetic="bf16", **COLUMN)
    return tmp_path


def test_a_schedule_and_line_search_stand_beside_the_papers_methods(column: Path) -> None:
    (found,) = paper_columns(comparisons(runs(column)))
    assert list(found.methods) == list(found.labels) == ["sgd", "cgq", "sgd_cosine", "search"]
    assert found.problem.experiment == "table2"


def test_only_what_was_run_as_long_does(column: Path) -> None:
    rows = training(0, 2 * EPOCHS, 0.3, 90.0)
    write(column, rows, experiment="table2", method="cgq", seed=1, **COLUMN)
    short, long = paper_columns(comparisons(runs(column)))
    assert [list(one.methods) for one in (short, long)] == [
        ["sgd", "cgq", "sgd_cosine", "search"],
        ["cgq"],
    ]


def test_they_are_drawn_in_it(column: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, Figure] = {}

    def keep(figure: Figure, path: Path) -> Path:
        kept[path.name] = figure
        return path

    monkeypatch.setattr(sys.modules[figures.dynamics.__module__], "saved", keep)
    figures.every_figure(findings(column), column / "plots")
    told = {
        name: [text.get_text() for text in figure.legends[0].get_texts()]
        for name, figure in kept.items()
    }
    assert told["table2-cifar-10-resnet-164-dynamics.png"] == [
        *("SGD", "CGQ(2pt)", "sgd_cosine", "search"),
    ]
    assert told["today2-cifar-10-resnet-164-dynamics.png"] == ["sgd_cosine", "prodigy", "search"]


def test_a_budget_says_that_there_were_fewer_bits(column: Path) -> None:
    (today, _) = sorted(comparisons(runs(column)), key=lambda one: -len(one.methods))
    assert today.budget == "4 epochs, 1 seed, bf16"
    rows = training(0, EPOCHS, 0.3, 90.0)
    write(column, rows, experiment="table2", method="adam", arithmetic="tf32", **COLUMN)
    (table,) = (one for one in comparisons(runs(column)) if one.problem.experiment == "table2")
    assert table.budget == "4 epochs, 1 seed, bf16 or tf32"
