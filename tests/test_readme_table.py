"""The README's table of the paper's columns says what the records and the paper say."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from pages import README, ROOT

from cgqbench.analysis.chance import dead
from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.measures import ACCURACY, averaged, shown
from cgqbench.analysis.summary import summary
from cgqbench.analysis.verdicts import TABLES, Verdict, paper_cells
from cgqbench.experiments import paper
from cgqbench.methods import METHODS
from cgqbench.records.reading import runs

RECORDS = ROOT / "results" / "records"
COLUMNS = [("mnist", "mlp"), ("svhn", "vgg16"), ("cifar10", "vgg16"), ("cifar100", "vgg16")]
BESIDE = {
    "SGD + cosine": ("sgd_cosine", ACCURACY),
    "SGD, averaged": ("sgd", averaged(ACCURACY)),
    "LineSearch around SGD, averaged": ("search", averaged(ACCURACY)),
}


def table_after(words: str, rows: int, page: Path = README) -> dict[str, list[str]]:
    lines = page.read_text().split(words)[1].splitlines()
    cells = [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines if line.startswith("|")]
    return {row[0].strip("*"): [cell.strip("*") for cell in row[1:]] for row in cells[2:][:rows]}


def table() -> dict[str, list[str]]:
    words = "ours / the paper's, of the last weights:"
    return table_after(words, len(paper.METHODS) + len(BESIDE))


def recorded(folder: str) -> list:
    return comparisons(runs(RECORDS / folder))


def ended(folder: str, dataset: str, network: str) -> list:
    return comparisons(
        [run for run in runs(RECORDS / folder) if run.path.name.startswith(f"{dataset}-{network}-")]
    )


@pytest.mark.parametrize("column", range(len(COLUMNS)), ids=["-".join(names) for names in COLUMNS])
def test_each_cell_is_that_of_the_records_and_of_the_paper(column):
    dataset, network = COLUMNS[column]
    name = TABLES[dataset.startswith("cifar")]
    compared = ended(name, dataset, network)
    for cell in paper_cells(compared, name):
        if (cell.dataset, cell.network) != (dataset, network):
            continue
        if cell.verdict is Verdict.NOT_RUN:
            ours = "not run"
        elif any(map(dead, compared[0].methods[cell.method])):
            ours = "died"
        else:
            ours = f"{cell.entry.values[ACCURACY].mean:.2f}"
        theirs = "–" if cell.theirs is None else f"{cell.theirs.test_accuracy:.2f}"
        assert table()[METHODS[cell.method].label][column] == f"{ours} / {theirs}", cell.method


@pytest.mark.parametrize("label", BESIDE)
@pytest.mark.parametrize("column", range(len(COLUMNS)), ids=["-".join(names) for names in COLUMNS])
def test_so_is_what_stands_beside_them(column, label):
    dataset, network = COLUMNS[column]
    method, metric = BESIDE[label]
    number = 2 if dataset.startswith("cifar") else 1
    found = [
        entry
        for kind in ("table", "today")
        for compared in ended(f"{kind}{number}", dataset, network)
        for entry in summary(compared)
        if entry.method == method
    ]
    (entry,) = found
    reached = f" in epoch {entry.epoch}" if entry.unfinished else ""
    assert table()[label][column] == f"{entry.values[metric].mean:.2f}{reached}"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (README, "**The step decays by itself**"),
        (ROOT / "results" / "README.md", "and `today2` with `--only sgd_cosine`"),
    ],
)
def test_the_deep_network_has_what_its_records_have(page, words):
    compared = [*ended("table2", "cifar10", "resnet164"), *ended("today2", "cifar10", "resnet164")]
    assert all(one.budget == "40 epochs, 1 seed, bf16" for one in compared)
    found = {entry.label: entry for one in compared for entry in summary(one)}
    rows = table_after(words, len(found), page)
    assert {name.partition(" over")[0] for name in rows} == {*found}
    for name, cells in rows.items():
        entry = found[name.partition(" over")[0]]
        for metric, cell in zip(("train_loss", ACCURACY, averaged(ACCURACY)), cells, strict=False):
            assert cell == shown(metric, entry.values[metric].mean), (name, metric)


def test_there_are_no_other_rows():
    assert [*table()] == [*(METHODS[method].label for method in paper.METHODS), *BESIDE]


def test_the_count_of_verdicts_is_that_of_the_tables():
    counts = Counter(cell.verdict for name in TABLES for cell in paper_cells(recorded(name), name))
    judged = sum(counts[each] for each in (Verdict.REPRODUCED, Verdict.BETTER, Verdict.WORSE))
    results = ROOT / "results" / "README.md"
    for page in (README, results):
        assert re.findall(r"(\d+) of 100 so far", page.read_text()) == [str(judged)], page
    verdicts = [Verdict.REPRODUCED, Verdict.BETTER, Verdict.WORSE]
    assert ", ".join(f"{counts[each]} {each.value}" for each in verdicts) in README.read_text()
    (left,) = re.findall(r"(\d+) of the 100 cells have no epoch here", results.read_text())
    assert left == str(counts[Verdict.NOT_RUN])
    assert judged + counts[Verdict.NOT_RUN] + 3 == counts.total() == 100  # "and three …, a fifth"
