"""What may stand side by side, what it is called, and what may not."""

import shutil

import pytest
from made_records import landscape, row, training, write

from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.findings import findings
from cgqbench.output.figures import every_figure
from cgqbench.records.reading import runs
from cgqbench.records.record import RecordError
from cgqbench.records.searches import searches

ONE = [row(1, train_loss=0.5, test_accuracy=90.0)]


def titles(folder):
    return [one.title for one in comparisons(runs(folder))]


def test_a_title_tells_problems_apart_and_says_no_more(tmp_path):
    write(tmp_path / "a", ONE)
    assert titles(tmp_path) == ["MNIST / MLP"]
    write(tmp_path / "b", ONE, batch_size=256)
    assert titles(tmp_path) == ["MNIST / MLP, batch size 64", "MNIST / MLP, batch size 256"]
    write(tmp_path / "c", ONE, epochs=5)
    assert titles(tmp_path) == [
        "MNIST / MLP, 1 epoch, batch size 64",
        "MNIST / MLP, 1 epoch, batch size 256",
        "MNIST / MLP, 5 epochs, batch size 64",
    ]
    write(tmp_path / "d", ONE, dataset="svhn")
    write(tmp_path / "e", ONE, experiment="table2")
    assert titles(tmp_path)[3:] == ["SVHN / MLP", "MNIST / MLP"]


def test_tasks_of_one_name_go_by_their_path(tmp_path):
    for number, task in enumerate(("x/my_task.py", "y/my_task.py", "other.py")):
        write(tmp_path / str(number), ONE, task=task)
    assert titles(tmp_path) == ["other", "x/my_task.py", "y/my_task.py"]


def test_a_task_is_known_by_its_content(tmp_path):
    for seed, task in enumerate(("here/my_task.py", "there/my_task.py")):
        write(tmp_path, ONE, task=task, seed=seed, checksum="0123456789")
    assert titles(tmp_path) == ["my_task"], "one task whose file was moved"
    write(tmp_path / "changed", ONE, task="here/my_task.py", checksum="abcdefghij")
    assert titles(tmp_path) == [
        "here/my_task.py, version 01234567",
        "here/my_task.py, version abcdefgh",
    ]


def test_no_figure_takes_the_place_of_another(tmp_path):
    records = tmp_path / "records"
    for number, batch_size in enumerate((64, 256)):
        write(records / str(number), ONE, batch_size=batch_size)
        landscape(records / str(number), 1)
    for number, task in enumerate(("x/my_task.py", "X/my_task.py", "x-my_task.py")):
        write(records / f"task{number}", ONE, task=task)
    for letter in "ab":
        write(records, ONE, dataset="d" * 150 + letter)
    written = every_figure(findings(records), tmp_path / "plots")
    assert "paper.png" in [path.name for path in written], "the paper's tables are one picture"
    assert len(written) == 10
    assert len({path.name.lower() for path in written}) == 10
    assert all(len(path.name) < 110 for path in written)
    assert [one.title for one in searches(records)] == [
        f"MNIST / MLP, CGQ(2pt), seed 0, {number}/mnist-mlp-cgq-0" for number in range(2)
    ]


def test_a_copied_record_counts_once(tmp_path):
    write(tmp_path / "a", ONE)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (comparison,) = comparisons(runs(tmp_path))
    assert len(comparison.runs) == 1
    assert comparison.budget == "1 epoch, 1 seed"


def test_two_records_of_one_run_name_the_cure(tmp_path):
    first = write(tmp_path / "a", ONE)
    second = write(tmp_path / "b", [row(1, train_loss=0.4)])
    with pytest.raises(RecordError, match="Remove one of them") as caught:
        comparisons(runs(tmp_path))
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)


def test_one_name_for_different_settings_names_the_cure(tmp_path):
    first = write(tmp_path, ONE, settings={"lr": 0.1})
    second = write(tmp_path, ONE, settings={"lr": 0.001}, seed=1)
    with pytest.raises(RecordError, match="Report their folders apart") as caught:
        comparisons(runs(tmp_path))
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)


def test_what_all_labels_repeat_stands_in_the_title(tmp_path):
    for momentum in (0.7, 0.9):
        write(tmp_path, ONE, method=f"cgq:momentum={momentum},lr=0.3")
    (comparison,) = comparisons(runs(tmp_path))
    assert comparison.title == "MNIST / MLP, CGQ(2pt), lr=0.3"
    assert list(comparison.labels.values()) == ["momentum=0.7", "momentum=0.9"]
    write(tmp_path, ONE)
    (comparison,) = comparisons(runs(tmp_path))
    assert comparison.title == "MNIST / MLP"
    assert "CGQ(2pt) momentum=0.7, lr=0.3" in comparison.labels.values()


def test_a_label_is_never_shortened_to_nothing(tmp_path):
    for method in ("cgq", "cgq:lr=0.1"):
        write(tmp_path, ONE, method=method)
    (comparison,) = comparisons(runs(tmp_path))
    assert list(comparison.labels.values()) == ["CGQ(2pt)", "CGQ(2pt) lr=0.1"]


def test_an_experiment_s_own_order_then_names_by_number(tmp_path):
    momenta = ("0.9", "dai_yuan", "0.0", "polak_ribiere")
    for momentum in momenta:
        write(tmp_path, ONE, experiment="figure3a", method=f"cgq:momentum={momentum}")
    (comparison,) = comparisons(runs(tmp_path))
    words = ("polak_ribiere", "dai_yuan", "0.0", "0.9")
    assert list(comparison.methods) == [f"cgq:momentum={word}" for word in words]
    for number in (10, 9, 1):
        write(tmp_path / "own", training(0, 1, 0.1, 90.0), experiment="own", method=f"m{number}")
    (comparison,) = comparisons(runs(tmp_path / "own"))
    assert list(comparison.methods) == ["m1", "m9", "m10"]
