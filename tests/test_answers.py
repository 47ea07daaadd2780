"""The small tables: against values worked out by hand."""

import io
import math

import pytest
from made_records import row, write
from made_sweeps import cell
from rich.console import Console

from cgqbench.analysis.chance import chance_loss, dead
from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.measures import difference
from cgqbench.output.against_tuned import against_tuned
from cgqbench.output.outcome import write_outcome
from cgqbench.output.what_died import what_died
from cgqbench.records.reading import read_run, runs

RESNET = {"dataset": "cifar10", "network": "resnet110", "batch_size": 128, "epochs": 12}


def made(folder, question):
    return question(comparisons(runs(folder)))


def texts(table):
    """What its cells say; nothing in them is bold, and there is no small print."""
    assert not any(span.bold for span in table.spans)
    assert not any(cell.notes for row in table.rows for cell in row)
    return tuple(tuple(span.text for cell in row for span in cell.value) for row in table.rows)


def test_guessing_among_classes_and_tokens():
    assert chance_loss({"dataset": "cifar100"}) == math.log(100)
    # Unbalanced digits: a network that says how frequent each is has a loss below ln 10.
    assert chance_loss({"dataset": "svhn"}) == pytest.approx(2.2364, abs=1e-4)
    assert chance_loss({"dataset": "stdlib", "task": None}) == math.log(97)
    assert chance_loss({"dataset": "wine"}) is None
    assert chance_loss({"dataset": "mnist", "task": "mnist.py"}) is None, "a file of that name"


@pytest.mark.parametrize(
    ("loss", "end", "wanted"),
    [
        (0.5, "finished", False),
        (0.99 * math.log(10) - 1e-6, "finished", False),
        (0.99 * math.log(10), "finished", True),
        (0.5, "diverged", True),
        (2.31, None, False),
        (None, "finished", False),
    ],
)
def test_a_run_is_dead_if_it_ended_no_better_than_guessing(tmp_path, loss, end, wanted):
    path = write(tmp_path, [row(1, train_loss=2.0), row(2, train_loss=loss)], end=end)
    assert dead(read_run(path)) is wanted


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [({"test_loss": 2.4}, True), ({"test_loss": 2.4, "average_test_loss": 2.0}, False)],
)
def test_a_run_is_alive_if_any_of_its_weights_know_more_than_guessing(tmp_path, losses, wanted):
    path = write(tmp_path, [row(1, train_loss=2.3, **losses)])
    assert dead(read_run(path)) is wanted


def test_deaths_are_counted_among_the_seeds_that_ended(tmp_path):
    named = {"experiment": "safety", "dataset": "cifar10", "network": "vgg16", "epochs": 2}
    method = {"method": "search:max_relative_step=0.015", "label": "LineSearch"}
    for seed, losses in enumerate([(2.2, 1.5), (2.3, 2.303), (2.4, 1.7)]):
        rows = [row(epoch, train_loss=loss) for epoch, loss in enumerate(losses, 1)]
        write(tmp_path, rows, seed=seed, **method, **named)
    write(tmp_path, [row(1)], seed=3, end="diverged", **method, **named)
    write(tmp_path, [row(1, train_loss=2.3)], seed=4, end=None, **method, **named)
    assert texts(made(tmp_path, what_died)) == (
        (
            "CIFAR-10 / VGG-16, 2 epochs",
            "LineSearch max_relative_step=0.015",
            "2.300 ± 0.082",  # squared deviations 0.01 + 0.01 over three degrees of freedom
            "1.834 ± 0.418",  # of the three that ended
            "2.303",
            "2 of 4, 1 seed unfinished",
        ),
    )


def test_no_question_asked_no_table(tmp_path):
    cell(tmp_path, "lm", "search", 1.5, 1.4)
    cell(tmp_path, "sweep", "search", 1.5, 1.4)
    assert made(tmp_path, what_died) is None
    assert made(tmp_path, against_tuned) is None, "nothing tuned to compare with"


def test_untuned_against_the_best_of_a_sweep(tmp_path):
    cell(tmp_path, "sweep", "adamw:lr=0.001", 1.60, 1.53)
    for seed, loss in enumerate((1.49, 1.51)):
        cell(tmp_path, "sweep", "adamw_cosine:lr=0.006", loss, loss + 0.1, seed=seed)
    cell(tmp_path, "sweep", "adamw_cosine:lr=0.02", 1.3, 1.3)
    cell(tmp_path, "sweep", "adamw_cosine:lr=0.02", None, seed=1)
    cell(tmp_path, "sweep", "search", 1.6, 1.47)
    cell(tmp_path, "sweep", "search:max_relative_step=0.01", 1.6, 1.515)
    table = made(tmp_path, against_tuned)
    tuned = (
        "1.500 ± 0.014 (AdamW + cosine lr=0.006, 2 seeds)",
        "1.530 (AdamW lr=0.001, 1 seed)",
    )
    problem = "Python source / GPT-1M, 6 epochs"
    # 1.47 is 2 % below 1.5; a rate of which a seed diverged is no rival.
    assert texts(table) == (
        (problem, "LineSearch, 1 seed", "1.600", "1.470", *tuned, "2.0 % better", "–"),
        (
            problem,
            "LineSearch max_relative_step=0.01, 1 seed",
            "1.600",
            "1.515",
            *tuned,
            "1.0 % worse",
            "–",
        ),
    )


def test_accuracies_are_compared_in_points_and_without_averages_too(tmp_path):
    cell(tmp_path, "sweep_images", "sgd_cosine:lr=0.1", 0.2, 0.2, (91.3, 91.1), **RESNET)
    cell(tmp_path, "sweep_images", "search", 0.4, 0.3, (84.0, 90.9), **RESNET)
    (line,) = texts(made(tmp_path, against_tuned))
    assert line[-2] == "0.40 points worse"
    assert line[2:4] == ("84.00", "90.90")
    cell(tmp_path / "bare", "sweep_images", "sgd_cosine:lr=0.1", 0.2, None, (91.3, None), **RESNET)
    cell(tmp_path / "bare", "sweep_images", "search", 0.2, None, (92.3, None), **RESNET)
    (line,) = texts(made(tmp_path / "bare", against_tuned))
    assert line[-4:-1] == ("91.30 (SGD + cosine lr=0.1, 1 seed)", "–", "1.00 points better")


def test_untuned_runs_that_failed_are_named(tmp_path):
    cell(tmp_path, "sweep_long", "adamw:lr=0.001", 1.6, 1.5, epochs=24)
    cell(tmp_path, "sweep_long", "search", None, epochs=24)
    (line,) = texts(made(tmp_path, against_tuned))
    assert line[1] == "LineSearch, 1 seed, 1 diverged"
    assert line[-2] == "–"


def test_the_passes_of_a_step_are_told(tmp_path):
    named = {"experiment": "sweep", "dataset": "stdlib", "network": "gpt1m"}
    write(tmp_path, [row(1, test_loss=1.5), row(2, test_loss=1.4)], method="adamw:lr=0.1", **named)
    rows = [row(1, test_loss=1.5, passes=1.5), row(2, test_loss=1.4, passes=1.1)]
    write(tmp_path, rows, method="search", **named)
    (line,) = texts(made(tmp_path, against_tuned))
    assert line[-1] == "1.30"


def test_a_difference_too_small_to_show_is_level():
    assert difference("test_loss", 1.4995, 1.5) == "level"
    assert difference("test_loss", 0.0, 0.0) == "level"
    assert difference("test_loss", 0.25, 0.0) == "0.25 worse"
    assert difference("test_loss", -2.2, -2.0) == "10.0 % better"
    assert difference("test_accuracy", 91.004, 91.0) == "level"


def test_they_are_printed_and_written_with_the_tables_and_on_the_page(tmp_path):
    cell(tmp_path, "sweep", "adamw:lr=0.001", 1.6, 1.5)
    cell(tmp_path, "sweep", "search", 1.6, 1.4)
    cell(tmp_path, "safety", "search:max_relative_step=0.005", 1.6, 1.4)
    console = Console(file=io.StringIO(), width=250)
    write_outcome(tmp_path, tmp_path / "out", console)
    printed = console.file.getvalue()
    text = (tmp_path / "out" / "table.md").read_text()
    page = (tmp_path / "out" / "report.html").read_text()
    for shown in (printed, text, page):
        for words in ("LineSearch against tuned rates", "6.7 % better", "What died", "0 of 1"):
            assert words in shown
    assert "| problem | method | first epoch |" in text
    assert r"LineSearch max\_relative\_step=0.005" in text
    assert '<a href="#answer-2">What died</a>' in page
