"""The picture of the paper's tables: every cell has both values and the colour of its verdict."""

import sys
from collections import Counter

import pytest
from made_records import row, write
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.findings import findings
from cgqbench.analysis.verdicts import Verdict
from cgqbench.experiments import paper
from cgqbench.output.figures import every_figure, paper_map
from cgqbench.output.page.report import write_report
from cgqbench.records.reading import runs

PLACES = {  # of these columns and methods, on the picture
    ("mnist", "mlp"): 0,
    ("svhn", "vgg16"): 1,
    ("cifar10", "vgg16"): 4,
    ("cifar10", "resnet164"): 6,
}


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """Draws the records of the test's folder: what stands in each cell, and its colour."""
    kept = []
    monkeypatch.setattr(
        sys.modules[paper_map.__module__], "saved", lambda figure, path: kept.append(figure) or path
    )

    def drawn():
        paper_map(comparisons(runs(tmp_path)), tmp_path / "paper.png")
        kept[-1].draw_without_rendering()
        (axis,) = kept[-1].axes
        words: dict[tuple[int, int], list[str]] = {}
        for text in sorted(axis.texts, key=lambda text: text.get_position()[1]):
            column, height = text.get_position()
            words.setdefault((column, round(height)), []).append(text.get_text())
        squares = [each for each in axis.patches if isinstance(each, Rectangle)]
        faces = {
            (round(each.get_x() + 0.5), round(each.get_y() + 0.5)): to_hex(each.get_facecolor())
            for each in squares
        }
        assert len(squares) == len(faces) == len(words) == 100
        for column, label in enumerate(axis.get_xticklabels()):
            words[column, -1] = label.get_text().splitlines()
        told = [text.get_text() for text in kept[-1].legends[0].get_texts()]
        return words, faces, told, kept[-1].get_suptitle()

    return drawn


def made(folder, method, accuracy, column=("svhn", "vgg16"), done=None, loss=0.1, **more):
    dataset, network = column
    epochs = more.pop("epochs", paper.EPOCHS[dataset])
    values = {"train_loss": loss, "test_loss": loss, "test_accuracy": accuracy}
    table = f"table{1 + dataset.startswith('cifar')}"
    rows = [row(epoch, **values) for epoch in range(1, 1 + (done or epochs))]
    named = {"dataset": dataset, "network": network, "experiment": table, "method": method}
    write(folder, rows, epochs=epochs, **named, **more)


def test_both_values_and_the_colour_of_each_verdict(tmp_path, cells):
    made(tmp_path, "sgd", 93.20)  # the paper has 93.16
    made(tmp_path, "adam", 94.0)  # 93.14
    made(tmp_path, "lookahead", 93.0)  # 93.95
    made(tmp_path, "armijo", 93.0, done=7, end=None)
    made(tmp_path, "pal", 10.0, done=2, end="diverged")  # as in the paper
    made(tmp_path, "cgq", 60.0, done=2, end="diverged")  # 94.70
    made(tmp_path, "sgd", 91.0, column=("cifar10", "resnet164"), epochs=40)
    words, faces, told, heading = cells()
    column = {method: (PLACES["svhn", "vgg16"], line) for line, method in enumerate(paper.METHODS)}
    shown = {method: words[at] for method, at in column.items()}
    assert shown["sgd"] == ["93.20", "93.16"]
    assert shown["adam"] == ["94.00", "93.14"]
    assert shown["lookahead"] == ["93.00", "93.95"]
    assert shown["cocob"] == ["91.81"]
    assert shown["armijo"] == ["93.00", "92.42; 7 of 40"]
    assert shown["pal"] == ["–", "–"]
    assert shown["cgq"] == ["–", "94.70"]
    assert words[PLACES["cifar10", "resnet164"], 0] == ["91.00", "86.06; 40 of 200"]
    assert "n of N" in heading
    assert "some seeds" not in heading
    colour = {method: faces[at] for method, at in column.items()}
    assert colour["sgd"] == colour["pal"], "reproduced"
    assert colour["lookahead"] == colour["cgq"], "worse"
    assert len({colour[method] for method in ("sgd", "adam", "lookahead", "cocob")}) == 4
    assert Counter(faces.values())[colour["adam"]] == 1
    assert told == [
        *("better: 1", "reproduced: 2", "worse: 2"),
        *("no verdict: 1", "unfinished: 1", "not yet run: 93"),
    ]
    assert {line.partition(":")[0] for line in told} == {verdict.value for verdict in Verdict}


def test_other_batches_are_named(tmp_path, cells):
    made(tmp_path, "sgd", 93.2, batch_size=512)
    words, faces, told, heading = cells()
    at = PLACES["svhn", "vgg16"], 0
    assert words[at] == ["93.20", "93.16; batches of 512"]
    assert "n of N" not in heading
    assert told == ["no verdict: 1", "not yet run: 99"]
    assert Counter(faces.values())[faces[at]] == 1


def test_some_seeds_dead_is_neither_all_nor_none(tmp_path, cells):
    for seed, end in enumerate(("finished", "finished", "diverged")):
        made(tmp_path, "sgd", 93.0 + seed, seed=seed, end=end, done=2 if end == "diverged" else 40)
    for seed in range(2):  # which guessed to the end, as a record of before says
        made(tmp_path, "pal", 19.59, seed=seed, loss=2.3)
    for seed, (accuracy, loss) in enumerate(((93.0, 0.1), (19.0, 2.3))):
        made(tmp_path, "adam", accuracy, seed=seed, loss=loss)
    words, _, _, heading = cells()
    assert words[PLACES["svhn", "vgg16"], paper.METHODS.index("sgd")] == ["93.50*", "93.16"]
    assert words[PLACES["svhn", "vgg16"], paper.METHODS.index("adam")] == ["56.00*", "93.14"]
    assert words[PLACES["svhn", "vgg16"], paper.METHODS.index("pal")] == ["–", "–"]
    assert "*: some seeds do not, left out if they diverged" in heading
    assert "n of N" not in heading


def test_a_number_of_a_run_that_goes_on_says_so_beside_a_dead_seed(tmp_path, cells):
    for method, loss in (("sgd", None), ("adam", 2.3)):  # diverged; guessed to the end
        done, end = (40, "finished") if loss else (2, "diverged")
        made(tmp_path, method, 19.59, loss=loss, done=done, end=end)
        made(tmp_path, method, 60.0, seed=1, done=7, end=None)
    words, _, _, heading = cells()
    shown = [words[PLACES["svhn", "vgg16"], line] for line in range(2)]
    assert shown == [["60.00*", "93.16; 7 of 40"], ["–", "93.14"]]
    assert "n of N" in heading


def test_a_column_says_that_any_of_it_is_in_bf16(tmp_path, cells):
    made(tmp_path, "sgd", 91.0, column=("cifar10", "resnet164"), arithmetic="bf16")
    made(tmp_path, "pal", 10.0, column=("cifar10", "resnet164"), end="diverged")
    made(tmp_path, "sgd", 93.0, arithmetic="tf32")
    words, *_ = cells()
    assert words[PLACES["cifar10", "resnet164"], -1] == ["CIFAR-10", "ResNet-164", "1 seed, bf16"]
    assert words[PLACES["svhn", "vgg16"], -1] == ["SVHN", "VGG-16", "1 seed"]


def test_runs_without_an_accuracy_have_none(tmp_path, cells):
    made(tmp_path, "sgd", None)
    words, *_ = cells()
    assert words[PLACES["svhn", "vgg16"], 0] == ["–", "93.16"]


def test_it_is_drawn_and_on_the_page_where_there_are_records_of_the_tables(tmp_path):
    made(tmp_path / "without", "sgd", 98.0, column=("mnist", "mlp"))
    record = next((tmp_path / "without").rglob("*.jsonl"))
    text = record.read_text(encoding="utf-8")
    record.write_text(text.replace('"table1"', '"compare"'), encoding="utf-8")
    made(tmp_path / "with", "sgd", 98.0, column=("mnist", "mlp"))
    for name, times in (("with", 1), ("without", 0)):
        found = findings(tmp_path / name)
        plots = every_figure(found, tmp_path / name / "plots")
        assert [path.name for path in plots].count("paper.png") == times
        page = write_report(found, tmp_path / name / "report.html").read_text(encoding="utf-8")
        assert page.count("data:image/png") == times
