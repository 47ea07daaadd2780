"""What is said of each cell of the paper's tables: every verdict, worked out by hand."""

import io
import re

import pytest
from made_records import row, write
from rich.console import Console

from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.verdicts import TABLES, Verdict, paper_cells
from cgqbench.experiments import EXPERIMENTS, paper
from cgqbench.output.answers import answers
from cgqbench.output.beside_paper import beside_paper, how_far
from cgqbench.output.outcome import write_outcome
from cgqbench.records.reading import runs

PAPER = 98.24  # CGQ(2pt), MNIST
CGQ = ("mnist", "mlp", "cgq")
ARMIJO = ("svhn", "resnet110", "armijo")  # does not converge, says the paper


def made(folder, *accuracies, of=CGQ, epochs=None, done=None, end="finished", loss=0.1, **more):
    """Records of a cell, a seed for each accuracy."""
    dataset, network, method = of
    epochs = epochs or paper.EPOCHS[dataset]
    for seed, accuracy in enumerate(accuracies, more.pop("seed", 0)):
        values = {"train_loss": loss, "test_accuracy": accuracy, "average_test_accuracy": 98.5}
        rows = [row(epoch, **values) for epoch in range(1, 1 + (epochs if done is None else done))]
        named = {"dataset": dataset, "network": network, "method": method, "seed": seed}
        write(folder, rows, end=end, epochs=epochs, **named, **more)


def cell_in(folder, of=CGQ, table="table1"):
    found = paper_cells(comparisons(runs(folder)), table)
    return next(one for one in found if (one.dataset, one.network, one.method) == of)


def shown(folder, of=CGQ, table="table1"):
    """The lines that a table has for a cell."""
    dataset, network, method = of
    experiment = EXPERIMENTS[table]
    places = [(column.dataset, column.network) for column in experiment.columns]
    rows = beside_paper(comparisons(runs(folder)), table).rows
    cell = rows[experiment.methods.index(method)][1 + places.index((dataset, network))]
    return ["".join(span.text for span in line) for line in (cell.value, *cell.notes)]


def test_the_paper_s_values_are_all_there():
    cells = [cell for table in TABLES for cell in paper_cells([], table)]
    assert len(cells) == 100
    assert {(one.dataset, one.network, one.method) for one in cells} == set(paper.RESULTS)
    assert {one.verdict for one in cells} == {Verdict.NOT_RUN}
    for table in TABLES:
        for column in EXPERIMENTS[table].columns:
            assert column.epochs == paper.EPOCHS[column.dataset]


@pytest.mark.parametrize(
    ("accuracies", "verdict"),
    [
        ([PAPER], Verdict.REPRODUCED),
        ([PAPER + 0.30], Verdict.REPRODUCED),
        ([PAPER - 0.30], Verdict.REPRODUCED),
        ([PAPER + 0.304], Verdict.REPRODUCED),  # which is shown as 98.54
        ([PAPER + 0.31], Verdict.BETTER),
        ([PAPER - 0.31], Verdict.WORSE),
        ([PAPER - 0.9, PAPER + 0.1], Verdict.REPRODUCED),  # −0.4, but the deviation is 0.71
        ([PAPER - 0.5, PAPER - 0.3], Verdict.WORSE),  # −0.4, and the deviation is 0.14
        ([PAPER + 0.5, PAPER + 0.3], Verdict.BETTER),
    ],
)
def test_within_the_tolerance_or_our_own_spread(accuracies, verdict, tmp_path):
    made(tmp_path, *accuracies)
    assert cell_in(tmp_path).verdict == verdict


def test_a_cell_shows_both_values_the_seeds_and_the_epochs(tmp_path):
    made(tmp_path, 97.0, 97.2)
    assert shown(tmp_path) == [
        "worse, −1.14",
        "paper 0.007 / 98.24",
        "ours 0.100 ± 0.000 / 97.10 ± 0.14",
        "averaged 98.50 ± 0.00",
        "20 of 20 epochs, 2 seeds",
    ]
    assert shown(tmp_path, ("mnist", "mlp", "sgd")) == ["not yet run", "paper 0.076 / 97.24"]


def test_the_spread_is_compared_as_it_is_shown(tmp_path):
    made(tmp_path, PAPER - 0.696, PAPER - 0.35, PAPER - 0.004)  # −0.35, with a spread of 0.346
    assert shown(tmp_path)[0] == "reproduced, −0.35"


def test_an_end_before_the_paper_s_epochs_is_none(tmp_path):
    made(tmp_path, PAPER - 10.0, done=2)
    assert cell_in(tmp_path).verdict is Verdict.UNFINISHED


def test_fewer_epochs_than_the_paper_s_get_no_verdict(tmp_path):
    cell = ("cifar10", "resnet164", "sgd")
    made(tmp_path, 99.9, of=cell, epochs=40, experiment="table2")
    assert cell_in(tmp_path, cell, "table2").verdict == Verdict.NONE
    lines = shown(tmp_path, cell, "table2")
    assert lines[0] == "no verdict (40 of 200 epochs)"
    assert lines[-1] == "40 of 200 epochs, 1 seed"


def test_the_paper_s_length_is_preferred_to_any_other(tmp_path):
    made(tmp_path / "short", 90.0, epochs=5)
    made(tmp_path / "long", 99.0, epochs=30)
    assert shown(tmp_path)[0] == "no verdict (30 of 20 epochs)"
    made(tmp_path / "right", PAPER)
    assert cell_in(tmp_path).verdict == Verdict.REPRODUCED


def test_other_batches_get_no_verdict_and_the_authors_are_preferred(tmp_path):
    made(tmp_path / "other", 99.0, batch_size=512)
    assert cell_in(tmp_path).verdict == Verdict.NONE
    assert shown(tmp_path)[0] == "no verdict (batches of 512)"
    made(tmp_path / "short", 98.0, epochs=5)
    assert shown(tmp_path)[0] == "no verdict (5 of 20 epochs)"
    made(tmp_path / "right", PAPER)
    assert shown(tmp_path)[0] == "reproduced, +0.00"


def test_an_unfinished_cell_says_how_far_it_is(tmp_path):
    made(tmp_path, 99.0, done=7, end=None)
    assert cell_in(tmp_path).verdict == Verdict.UNFINISHED
    assert shown(tmp_path)[0] == "unfinished (7 of 20 epochs)"
    made(tmp_path, 98.3, seed=1)
    assert cell_in(tmp_path).verdict == Verdict.REPRODUCED, "by the seed that is finished"
    assert shown(tmp_path)[-1] == "20 of 20 epochs, 1 of 2 seeds; 1 unfinished"


def test_a_record_without_an_epoch_is_not_a_run(tmp_path):
    made(tmp_path, 99.0, done=0, end=None)
    assert cell_in(tmp_path).verdict == Verdict.NOT_RUN


@pytest.mark.parametrize(
    ("of", "verdict"), [(CGQ, Verdict.WORSE), (ARMIJO, Verdict.REPRODUCED)], ids=str
)
@pytest.mark.parametrize("end", ["diverged", "finished"])
def test_a_seed_that_died_is_worse_unless_the_paper_s_dies_too(of, verdict, end, tmp_path):
    made(tmp_path, PAPER, of=of)
    made(tmp_path, 11.0, of=of, seed=1, done=3, end=end, loss=9.0)  # above ln 10: it only guesses
    assert cell_in(tmp_path, of).verdict == verdict


def test_what_trains_where_the_paper_s_does_not_is_better(tmp_path):
    made(tmp_path, 95.0, of=ARMIJO)
    assert shown(tmp_path, ARMIJO)[:2] == ["better", "paper –"]


def test_every_seed_diverged(tmp_path):
    made(tmp_path, None, done=2, end="diverged", loss=None)
    assert cell_in(tmp_path).verdict == Verdict.WORSE
    assert shown(tmp_path)[0] == "worse"
    assert shown(tmp_path)[-1] == "2 of 20 epochs, 1 seed; 1 diverged or died"


def test_seeds_that_only_guessed_count_as_those_that_ended_for_it(tmp_path):
    """In records of before a dead network ended its run."""
    pal = ("svhn", "vgg16", "sgd")
    made(tmp_path, 19.59, of=pal, loss=2.3)
    made(tmp_path, 19.59, of=pal, seed=1, loss=2.3, done=2, end="diverged")
    cell = cell_in(tmp_path, pal)
    assert (cell.verdict, cell.gain, cell.lost) == (Verdict.WORSE, None, True)
    assert shown(tmp_path, pal) == [
        *("worse", "paper 0.080 / 93.16", "ours – / –"),
        "40 of 40 epochs, 1 of 2 seeds; 2 diverged or died",
    ]
    made(tmp_path, 93.0, of=pal, seed=2)
    assert not cell_in(tmp_path, pal).lost
    assert shown(tmp_path, pal)[-1] == "40 of 40 epochs, 2 of 3 seeds; 2 diverged or died"


def test_lost_and_running_seeds_are_told_from_those_that_count(tmp_path):
    made(tmp_path, 98.0, done=7, end=None)
    assert shown(tmp_path)[-1] == "7 of 20 epochs, 1 seed"
    made(tmp_path, 98.0, seed=1, done=2, end="diverged")
    assert shown(tmp_path)[-1] == "7 of 20 epochs, 1 of 2 seeds; 1 diverged or died, 1 unfinished"
    assert shown(tmp_path)[0] == "worse", "and no points, of an epoch that is not the last"
    made(tmp_path, 98.3, seed=2)
    assert shown(tmp_path)[-1] == "20 of 20 epochs, 1 of 3 seeds; 1 diverged or died, 1 unfinished"


def test_other_experiments_and_settings_are_not_the_paper_s(tmp_path):
    made(tmp_path, PAPER, experiment="compare")
    made(tmp_path, PAPER, of=("mnist", "mlp", "cgq:lr=0.1"))
    assert cell_in(tmp_path).verdict == Verdict.NOT_RUN


def test_the_overview_counts_every_cell_of_both_tables_once(tmp_path):
    made(tmp_path, PAPER)
    made(tmp_path, 90.0, of=("mnist", "mlp", "sgd"))
    made(tmp_path, 90.0, of=("svhn", "vgg16", "pal"), done=2, end=None)
    table = how_far(comparisons(runs(tmp_path)))
    rows = [[cell.value[0].text for cell in line] for line in table.rows]
    assert rows[0] == ["Table 1, MNIST / MLP", "1", "–", "1", "–", "–", "8"]
    assert rows[1] == ["Table 1, SVHN / VGG-16", "–", "–", "–", "–", "1", "9"]
    assert len(rows) == 11
    assert rows[-1] == ["both tables", "1", "–", "1", "–", "1", "97"]
    assert "0.3 points" in table.caption


def test_they_are_shown_with_their_experiments_only(tmp_path):
    made(tmp_path, PAPER, experiment="compare")
    assert answers(comparisons(runs(tmp_path))) == []
    made(tmp_path, PAPER)
    console = Console(file=io.StringIO(), width=200)
    write_outcome(tmp_path, tmp_path / "out", console)
    printed = console.file.getvalue()
    text = (tmp_path / "out" / "table.md").read_text()
    page = (tmp_path / "out" / "report.html").read_text()
    for place in (printed, text, page):
        for words in ("How much of the paper is reproduced", "reproduced, +0.00", "not yet run"):
            assert words in place
        assert "Table 2 of the paper" not in place, "there is no record of it"
    titles = re.findall(r"^## (.*)", text, re.MULTILINE)
    assert titles[:2] == ["How much of the paper is reproduced", "Table 1 of the paper, and ours"]
    assert sorted(titles, key=printed.index) == titles[::-1], "the first stands above the prompt"


def test_a_cell_says_that_it_is_in_bf16(tmp_path):
    made(tmp_path / "one", 98.4, arithmetic="bf16")
    assert shown(tmp_path / "one")[-1].endswith("20 of 20 epochs, 1 seed, bf16")
    made(tmp_path / "other", 98.4)
    assert shown(tmp_path / "other")[-1].endswith("20 of 20 epochs, 1 seed")
