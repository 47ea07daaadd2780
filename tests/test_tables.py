"""Means, spreads, bold and dashes, against values worked out by hand."""

import io
import math

import pytest
from made_records import row, training, write
from rich.console import Console

from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.spread import Statistic, statistic
from cgqbench.analysis.summary import summary
from cgqbench.output.markdown import markdown_table
from cgqbench.output.results_table import results_tables
from cgqbench.output.terminal import terminal_table
from cgqbench.records.reading import runs


def one(folder, loss, accuracy, average=None, **cell):
    values = {"train_loss": loss, "test_accuracy": accuracy, "average_test_accuracy": average}
    return write(folder, [row(1, train_loss=9.0, test_accuracy=1.0), row(2, **values)], **cell)


def entries(folder):
    (comparison,) = comparisons(runs(folder))
    return {entry.method: entry for entry in summary(comparison)}


def tables(folder):
    return list(results_tables(comparisons(runs(folder))).values())


def printed(folder, width=150):
    console = Console(file=io.StringIO(), width=width)
    for table in tables(folder):
        console.print(terminal_table(table))
    return console.file.getvalue()


def test_mean_and_sample_standard_deviation_of_the_last_epoch(tmp_path):
    for seed, (loss, accuracy) in enumerate([(0.1, 97.0), (0.2, 98.0), (0.6, 99.0)]):
        one(tmp_path, loss, accuracy, accuracy + 0.5, seed=seed)
    values = entries(tmp_path)["sgd"].values
    assert values["train_loss"].mean == pytest.approx(0.3)
    # Squared deviations 0.04 + 0.01 + 0.09 over two degrees of freedom.
    assert values["train_loss"].spread == pytest.approx(math.sqrt(0.07))
    assert values["test_accuracy"] == Statistic(98.0, 1.0, 3)
    assert values["average_test_accuracy"] == Statistic(98.5, 1.0, 3)
    text = printed(tmp_path)
    assert "0.300 ± 0.265 / 98.00 ± 1.00" in text
    assert "averaged 98.50 ± 1.00" in text
    assert "2 epochs, 3 seeds" in text


def test_one_seed_has_no_spread(tmp_path):
    one(tmp_path, 0.3, 98.0)
    assert entries(tmp_path)["sgd"].values["train_loss"] == Statistic(0.3, None, 1)
    text = printed(tmp_path)
    assert "±" not in text
    assert "1 seed" in text
    assert "averaged" not in text


def test_the_best_of_each_metric_is_bold_and_ties_as_shown_are_all_bold(tmp_path):
    one(tmp_path, 0.10004, 97.0, 98.0, method="sgd")
    one(tmp_path, 0.10001, 98.0, 97.0, method="adam")
    one(tmp_path, 0.2, 98.001, 97.5, method="mine")
    best = {method: entry.best for method, entry in entries(tmp_path).items()}
    assert best == {
        "sgd": {"train_loss", "average_test_accuracy"},
        "adam": {"train_loss", "test_accuracy"},
        "mine": {"test_accuracy"},
    }
    text = markdown_table(tables(tmp_path)[0])
    assert "| SGD | **0.100** / 97.00<br>averaged **98.00**<br>paper (20 epochs) 0.076" in text
    spans = list(terminal_table(tables(tmp_path)[0]).columns[1].cells)
    assert spans[0].startswith("[bold]0.100[/bold] / 97.00\n")


def test_a_method_alone_is_not_called_the_best(tmp_path):
    one(tmp_path, 0.1, 97.0)
    assert entries(tmp_path)["sgd"].best == frozenset()


def test_diverged_seeds_are_left_out_and_told(tmp_path):
    one(tmp_path, 0.5, 90.0, method="sgd")
    one(tmp_path, 0.1, 97.0, seed=0, method="pal")
    one(tmp_path, 0.3, 99.0, seed=1, method="pal")
    write(tmp_path, [row(1)], end="diverged", seed=2, epochs=2, method="pal")
    pal = entries(tmp_path)["pal"]
    assert pal.values["train_loss"].mean == pytest.approx(0.2)
    assert pal.values["train_loss"].count == 2
    assert (pal.seeds, pal.diverged, pal.unfinished) == (3, 1, 0)
    assert pal.best == frozenset(), "what is left after failures is no fair winner"
    assert "3 seeds, 1 of 3 diverged" in printed(tmp_path)


def test_a_dash_where_every_seed_diverged_here_or_in_the_paper(tmp_path):
    cell = {"dataset": "svhn", "network": "resnet110", "method": "armijo", "epochs": 40}
    write(tmp_path, [row(1, train_loss=2.0)], end="diverged", **cell)
    write(tmp_path, [], end="diverged", seed=1, **cell)
    assert entries(tmp_path)["armijo"].values == {}
    (table,) = map(markdown_table, tables(tmp_path))
    assert "| armijo | –<br>paper –<br>2 of 2 diverged or died |" in table


def test_where_numbers_of_seeds_differ_the_best_is_one_of_those_with_the_most(tmp_path):
    for method in ("sgd", "adam", "pal"):
        one(tmp_path, 0.1, 97.0, method=method)
    assert all(entry.best for entry in entries(tmp_path).values())
    one(tmp_path, 0.3, 97.0, method="sgd", seed=1)
    assert not any(entry.best for entry in entries(tmp_path).values()), "alone with two seeds"
    one(tmp_path, 0.5, 99.0, method="adam", seed=1)
    best = {method: entry.best for method, entry in entries(tmp_path).items()}
    # Means over two seeds: 0.2 and 97 against 0.3 and 98. One seed's 0.1 is better than both.
    assert best == {"sgd": frozenset(), "adam": {"test_accuracy"}, "pal": frozenset()}
    assert "where their numbers differ, are the most" in tables(tmp_path)[0].caption


def test_unfinished_runs_show_the_last_epoch_they_share(tmp_path):
    rows = [row(epoch, train_loss=1 / epoch, test_accuracy=90.0 + epoch) for epoch in range(1, 6)]
    write(tmp_path, rows[:3], end=None, seed=0, epochs=20)
    write(tmp_path, rows[:5], end=None, seed=1, epochs=20)
    write(tmp_path, [], end=None, seed=2, epochs=20)
    sgd = entries(tmp_path)["sgd"]
    assert sgd.epoch == 3
    assert sgd.values["test_accuracy"] == Statistic(93.0, 0.0, 2)
    assert "epoch 3 of 20" in printed(tmp_path)


def test_finished_seeds_are_not_mixed_with_unfinished_ones(tmp_path):
    one(tmp_path, 0.1, 97.0, seed=0, epochs=2)
    write(tmp_path, [row(1, train_loss=5.0)], end=None, seed=1, epochs=2)
    assert entries(tmp_path)["sgd"].values["train_loss"] == Statistic(0.1, None, 1)
    assert "1 of 2 unfinished" in printed(tmp_path)


def test_a_run_without_an_epoch_yet(tmp_path):
    write(tmp_path, [], end=None, epochs=20)
    text = printed(tmp_path)
    assert "…" in text
    assert "epoch 0 of 20" in text


def test_null_is_no_number(tmp_path):
    one(tmp_path, None, 97.0, seed=0)
    one(tmp_path, 0.4, None, seed=1)
    values = entries(tmp_path)["sgd"].values
    assert values["train_loss"] == Statistic(0.4, None, 1)
    assert values["test_accuracy"] == Statistic(97.0, None, 1)
    assert statistic([None, math.nan, math.inf]) is None


def test_a_task_without_accuracy_shows_its_test_loss(tmp_path):
    cell = {"dataset": "own", "network": "own", "task": "some/where/wine.py"}
    write(tmp_path, [row(1, train_loss=0.5, test_loss=0.25, average_test_loss=0.2)], **cell)
    text = printed(tmp_path)
    assert "0.500 / test loss 0.250" in text
    assert "averaged test loss 0.200" in text
    assert "wine" in text
    (table,) = tables(tmp_path)
    assert table.caption.startswith("Train loss / test loss after the last epoch")
    assert "accuracy" not in table.caption
    write(tmp_path, training(0, 1, 0.3, 97.0), task="other.py")
    assert "test accuracy (%) or test loss" in tables(tmp_path)[0].caption


def test_methods_in_the_paper_s_order_then_others_and_settings_by_value(tmp_path):
    methods = ["zebra", "dog", "scgq", "sgd", "scgq:search_prob=1", "scgq:search_prob=0.5"]
    methods += ["scgq:search_prob=0.05", "cgq", "sgd_cosine"]
    for method in methods:
        one(tmp_path, 0.1, 97.0, method=method)
    assert list(entries(tmp_path)) == [
        *("sgd", "cgq", "scgq", "scgq:search_prob=0.05", "scgq:search_prob=0.5"),
        *("scgq:search_prob=1", "sgd_cosine", "dog", "zebra"),
    ]


def test_columns_are_problems_and_budgets_are_kept_apart(tmp_path):
    one(tmp_path / "a", 0.1, 97.0)
    one(tmp_path / "a", 0.1, 70.0, dataset="cifar10", network="vgg16")
    one(tmp_path / "a", 0.1, 93.0, dataset="svhn", network="vgg16", method="adam")
    one(tmp_path / "b", 0.2, 98.0, epochs=40)
    (table,) = tables(tmp_path)
    assert [column.title for column in table.columns] == [
        "method",
        "MNIST / MLP, 2 epochs",
        "MNIST / MLP, 40 epochs",
        "SVHN / VGG-16",
        "CIFAR-10 / VGG-16",
    ]
    notes = [column.note for column in table.columns]
    assert notes[1:3] == ["2 epochs, 1 seed", "40 epochs, 1 seed"]
    assert [not cell.value for cell in table.rows[0][1:]] == [False, False, True, False]


def test_a_table_for_each_experiment(tmp_path):
    one(tmp_path, 0.1, 97.0)
    one(tmp_path, 0.1, 97.0, experiment="compare")
    found = results_tables(comparisons(runs(tmp_path)))
    assert list(found) == ["compare", "table1"]
    headings = [markdown_table(table).partition("\n")[0] for table in found.values()]
    assert headings == ["## Comparison", "## MNIST and SVHN"]


def test_the_paper_s_value_stands_beside_ours_with_its_budget(tmp_path):
    write(tmp_path, training(0, 20, 0.3, 98.0), method="cgq")
    assert "paper 0.007 / 98.24" in printed(tmp_path)
    write(tmp_path / "short", training(0, 3, 0.3, 98.0), method="cgq")
    assert "paper (20 epochs) 0.007 / 98.24" in printed(tmp_path / "short")
    write(tmp_path / "large", training(0, 20, 0.3, 98.0), method="cgq", batch_size=128)
    assert "ours at batch size 128, paper 0.007 / 98.24" in printed(tmp_path / "large")


def test_names_cannot_break_out_of_a_table(tmp_path):
    one(tmp_path, 0.1, 97.0, method="a|b", label="[red]a|b <i>*c*[/red]")
    text = markdown_table(tables(tmp_path)[0])
    assert r"| \[red\]a\|b &lt;i&gt;\*c\*\[/red\] | 0.100" in text
    assert "[red]a|b <i>*c*[/red]" in printed(tmp_path)


def test_a_seed_that_runs_is_not_called_diverged(tmp_path):
    write(tmp_path, [], end=None, epochs=5)
    write(tmp_path, [], end="diverged", seed=1, epochs=5)
    assert "| SGD | …<br>" in markdown_table(tables(tmp_path)[0])
