"""Curves and costs, against values worked out by hand."""

import json

import pytest
from made_records import row, write

from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.costs import costs, median_epoch
from cgqbench.analysis.curves import curve, epoch_seconds, seconds, work
from cgqbench.records.reading import runs


def test_a_curve_is_the_mean_over_the_epochs_all_seeds_have(tmp_path):
    write(tmp_path, [row(1, momentum=0.2), row(2)], end=None, seed=0, epochs=9)
    write(tmp_path, [row(1, momentum=0.4), row(2), row(3)], end=None, seed=1, epochs=9)
    line = curve(runs(tmp_path), "momentum")
    assert line.mean == [pytest.approx(0.3), None]
    assert line.spread == [pytest.approx(0.02**0.5), None]
    assert curve(runs(tmp_path), "train_loss").empty


def test_seconds_add_up_and_a_repeated_epoch_counts_once(tmp_path):
    path = write(tmp_path, [row(1), row(2)], times=[9.0, 3.0])
    with path.with_suffix(".times.jsonl").open("a") as file:
        file.write(json.dumps({"epoch": 1, "train_seconds": 1.0}) + "\n")
    write(tmp_path, [row(1), row(2)], seed=1, times=[3.0, 5.0])
    found = runs(tmp_path)
    assert epoch_seconds(found[0]) == {1: 1.0, 2: 3.0}
    assert seconds(found) == [2.0, 6.0]
    assert median_epoch(found) == 3.0
    write(tmp_path, [row(1), row(2)], seed=2)
    assert seconds(runs(tmp_path)) == []


def test_work_is_passes_in_steps_of_sgd(tmp_path):
    write(tmp_path, [row(1, passes=1.0), row(2, passes=4.0)], end=None, epochs=9)
    assert work(runs(tmp_path)) == [1.0, 3.0]  # three more passes are forward: a step's work
    write(tmp_path, [row(1, passes=2.5)], end=None, seed=1, epochs=9)
    assert work(runs(tmp_path)) == [1.25]
    write(tmp_path, [row(1)], end=None, seed=2, epochs=9)
    assert work(runs(tmp_path)) == []


def test_work_is_that_of_the_seeds_that_are_drawn(tmp_path):
    write(tmp_path, [row(1, passes=1.0), row(2, passes=1.0)])
    write(tmp_path, [row(1, passes=7.0)], end="diverged", seed=1, epochs=2)
    assert work(runs(tmp_path)) == [1.0, 2.0]


def test_costs_are_compared_with_sgd_on_the_same_machine_only(tmp_path):
    for method, spent, hardware in (("sgd", 2.0, "A"), ("cgq", 3.0, "A"), ("adam", 1.0, "B")):
        cell = {"method": method, "hardware": hardware}
        write(tmp_path, [row(1), row(2)], times=[spent, spent], **cell)
    (comparison,) = comparisons(runs(tmp_path))
    found = {cost.method: cost for cost in costs(comparison)}
    assert {method: cost.ratio for method, cost in found.items()} == {
        "sgd": 1.0,
        "cgq": 1.5,
        "adam": None,
    }
    assert found["adam"].label == "Adam (B, cpu, 1 thread)"
    write(tmp_path, [row(1)], times=[9.0], method="cgq", seed=1, epochs=2, hardware="B")
    (comparison,) = comparisons(runs(tmp_path))
    assert [cost.ratio for cost in costs(comparison) if cost.method == "cgq"] == [None]
