"""The paper's columns at equal work, against values worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_records import row, write

from cgqbench.analysis.comparison import Comparison, comparisons
from cgqbench.analysis.equal_work import accuracy_after, averaged_after, columns
from cgqbench.output.answers import answers
from cgqbench.output.at_equal_work import at_equal_work
from cgqbench.output.table import Table
from cgqbench.records.reading import runs

COLUMN: dict[str, Any] = {"dataset": "svhn", "network": "vgg16"}
EPOCHS = 40


def rows(passes: float, first: float = 0.0) -> list[dict[str, Any]]:
    """Epoch n has an accuracy of `first` + n, and its averaged weights one of 50 + n."""
    return [
        row(n, passes=passes, test_accuracy=first + n, average_test_accuracy=50.0 + n)
        for n in range(1, EPOCHS + 1)
    ]


def made(folder: Path) -> list[Comparison]:
    return comparisons(runs(folder))


@pytest.fixture
def column(tmp_path: Path) -> Path:
    write(tmp_path, rows(1.0), method="sgd", **COLUMN)
    write(tmp_path, rows(4.0), method="cgq", **COLUMN)  # twice the work of SGD
    today = {"experiment": "today1", **COLUMN}
    write(tmp_path, rows(1.0), method="sgd_cosine", label="SGD + cosine", **today)
    write(tmp_path, rows(1.0), method="prodigy", label="Prodigy", **today)
    write(tmp_path, rows(1.0), method="sgd", dataset="mnist", network="mlp")
    return tmp_path


def test_columns_have_the_papers_methods_and_two_beside_them(column):
    (found,) = columns(made(column))
    assert found.problem.dataset == "svhn", "on MNIST nothing searches"
    assert list(found.methods) == ["sgd", "cgq", "sgd_cosine"]
    assert found.labels["sgd_cosine"] == "SGD + cosine"


def test_a_method_that_only_guessed_in_the_end_has_no_accuracy(column):
    guess = {"train_loss": 2.5, "test_loss": 2.5, "average_test_loss": 2.5}
    write(column, [{**each, **guess} for each in rows(2.0)], method="pal", **COLUMN)
    (found,) = columns(made(column))
    pal, sgd = found.methods["pal"], found.methods["sgd"]
    assert accuracy_after(pal, 20) is None
    assert averaged_after(pal, 20) is None
    assert accuracy_after(sgd, 20) is not None


def test_a_method_whose_passes_nobody_counted_is_left_out(column):
    write(column, [row(n, test_accuracy=1.0) for n in range(1, 41)], method="adam", **COLUMN)
    write(column, [], end=None, method="pal", epochs=EPOCHS, **COLUMN)
    (found,) = columns(made(column))
    assert list(found.methods) == ["sgd", "cgq", "sgd_cosine"]


def test_other_experiments_and_other_lengths_are_no_column(column):
    write(column, rows(3.0), method="cgq", experiment="compare", **COLUMN)
    write(column, rows(3.0)[:5], method="sgd_cosine", experiment="today1", epochs=5, **COLUMN)
    assert len(columns(made(column))) == 1


def test_the_same_work_is_another_epoch_for_each(column):
    (found,) = columns(made(column))
    sgd, cgq = found.methods["sgd"], found.methods["cgq"]
    # The mean over a twentieth of the epochs, two of 40.
    assert accuracy_after(sgd, 20).mean == 19.5
    assert accuracy_after(cgq, 20).mean == 9.5
    assert accuracy_after(cgq, 21.9).mean == 9.5, "its eleventh epoch ends at 22"
    assert accuracy_after(cgq, 22).mean == 10.5
    assert averaged_after(cgq, 22).mean == 61.0
    assert accuracy_after(sgd, 1).mean == 1.0, "there is no epoch before the first"
    assert accuracy_after(sgd, 40).mean == 39.5
    assert accuracy_after(sgd, 41) is None
    assert accuracy_after(cgq, 80).mean == 39.5


def test_no_epoch_is_lost_to_rounding(tmp_path):
    write(tmp_path, rows(1.1), method="sgd", **COLUMN)
    (compared,) = made(tmp_path)
    step = (1.1 + 2) / 3  # whose sums are not exact
    for epoch in range(1, EPOCHS + 1):
        assert averaged_after(compared.methods["sgd"], epoch * step).mean == 50.0 + epoch


def test_seeds_have_a_mean_and_a_spread_and_must_all_have_come_so_far(tmp_path):
    write(tmp_path, rows(1.0), method="sgd", **COLUMN)
    write(tmp_path, rows(4.0, first=10.0), method="sgd", seed=1, **COLUMN)
    (compared,) = made(tmp_path)
    group = compared.methods["sgd"]
    found = accuracy_after(group, 20)
    assert (found.mean, found.count) == (19.5, 2)
    assert found.spread == 0.0
    write(tmp_path, rows(1.0)[:10], method="sgd", seed=2, end="diverged", epochs=EPOCHS, **COLUMN)
    (compared,) = made(tmp_path)
    assert accuracy_after(compared.methods["sgd"], 20).count == 2, "what diverged has no place"
    assert accuracy_after(group, 41) is None


def texts(table: Table) -> list[list[str]]:
    return [["".join(span.text for span in cell.value) for cell in row] for row in table.rows]


def test_the_table_has_the_best_of_each_moment_in_bold(column):
    (table,) = at_equal_work(made(column))
    assert table.title == "SVHN / VGG-16, at equal work"
    assert [head.title for head in table.columns[3:]] == [
        "after 5", "after 10", "after 20", "after 30", "after 40",
    ]  # fmt: skip
    assert texts(table) == [
        ["SGD", "1", "40", "4.50", "9.50", "19.50", "29.50", "39.50"],
        ["CGQ(2pt)", "1", "80", "1.50", "4.50", "9.50", "14.50", "19.50"],
        ["SGD + cosine", "1", "40", "4.50", "9.50", "19.50", "29.50", "39.50"],
    ]
    bold = {span.text for span in table.spans if span.bold}
    assert bold == {"4.50", "9.50", "19.50", "29.50", "39.50"} | {
        f"{50 + n}.00" for n in (5, 10, 20, 30, 40)
    }
    cgq = table.rows[1]
    assert not any(span.bold for cell in cgq for line in (cell.value, *cell.notes) for span in line)
    assert cgq[-1].notes == ((("averaged ", False), ("70.00", False)),)


def test_table_2_has_its_own_methods_beside_it(column):
    paper = {"experiment": "table2", "dataset": "cifar10", "network": "vgg16"}
    for method in ("sgd", "cgq"):
        write(column, rows(4.0), method=method, **paper)
    for method in ("search", "adamw"):
        write(column, rows(1.0), method=method, **{**paper, "experiment": "today2"})
    found = {one.problem.experiment: list(one.methods) for one in columns(made(column))}
    assert found == {"table1": ["sgd", "cgq", "sgd_cosine"], "table2": ["sgd", "cgq", "search"]}


def bold(table: Table) -> list[str]:
    """The methods that are called the best of the last moment."""
    return [row[0].value[0].text for row in table.rows if row[-1].value[0].bold]


def test_what_looks_level_is_level(column):
    write(column, rows(1.0, first=0.004), method="adam", **COLUMN)
    (table,) = at_equal_work(made(column))
    assert bold(table) == ["SGD", "Adam", "SGD + cosine"]


def test_who_has_lost_seeds_is_not_the_best_and_says_so(column):
    write(column, rows(1.0, first=10.0), method="adam", **COLUMN)
    for seed in (1, 2):
        lost = {"seed": seed, "end": "diverged", "epochs": EPOCHS}
        write(column, rows(1.0)[:3], method="adam", **lost, **COLUMN)
    (table,) = at_equal_work(made(column))
    (adam,) = [row for row in table.rows if row[0].value[0].text == "Adam"]
    assert (adam[1].value[0].text, adam[1].notes[0][0].text) == ("3", "2 of 3 diverged or died")
    assert adam[-1].value[0].text == "49.50"
    assert bold(table) == ["SGD", "SGD + cosine"]


def test_fewer_seeds_are_a_first_look_that_takes_the_mark_away(column):
    for seed in (1, 2):
        write(column, rows(1.0), method="sgd", seed=seed, **COLUMN)
        write(column, rows(4.0), method="cgq", seed=seed, **COLUMN)
    write(column, rows(1.0, first=10.0), method="adam", **COLUMN)
    (table,) = at_equal_work(made(column))
    assert bold(table) == []


def test_an_epoch_without_its_test_does_not_count(tmp_path):
    gaps = rows(1.0)
    gaps[19]["test_accuracy"] = None
    write(tmp_path, gaps, method="sgd", **COLUMN)
    (compared,) = made(tmp_path)
    assert accuracy_after(compared.methods["sgd"], 20).mean == 19.0


def test_what_did_less_work_has_a_dash(column):
    write(column, rows(1.0)[:10], method="adam", end=None, epochs=EPOCHS, **COLUMN)
    (table,) = at_equal_work(made(column))
    assert ["Adam", "1", "10", "4.50", "9.50", "–", "–", "–"] in texts(table)


def test_it_is_among_the_answers_where_there_is_a_column(column, tmp_path):
    assert "SVHN / VGG-16, at equal work" in [table.title for table in answers(made(column))]
    alone = tmp_path / "alone"
    write(alone, rows(1.0), method="sgd", **COLUMN)
    assert not at_equal_work(made(alone))


def test_a_column_in_bf16_says_so(tmp_path: Path) -> None:
    for method, passes in (("sgd", 1.0), ("cgq", 3.0)):
        write(tmp_path, rows(passes), method=method, arithmetic="bf16", **COLUMN)
    (table,) = at_equal_work(made(tmp_path))
    assert table.title == "SVHN / VGG-16, at equal work, bf16"
