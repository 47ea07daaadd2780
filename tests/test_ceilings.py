"""The figure over ceilings: one for all networks, and what died is seen in it."""

import itertools

import numpy as np
import pytest
from made_sweeps import ceiling as every_ceiling
from made_sweeps import cell, keeping
from test_palette import VISION, lab

from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.findings import findings
from cgqbench.output.figures import ceilings, every_figure
from cgqbench.output.figures.ceilings import KINDS, SEARCHED, UNSEARCHED
from cgqbench.output.page.report import write_report
from cgqbench.records.reading import runs

VGG = {"dataset": "cifar10", "network": "vgg16", "batch_size": 128, "epochs": 12}


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws the records of the test's folder; the figure itself."""

    def draw():
        kept = keeping(monkeypatch, "ceilings")
        ceilings(comparisons(runs(tmp_path)), tmp_path / "figure.png")
        return kept[-1]

    return draw


def trained(folder, ceiling, prob, final, average=None, accuracies=None, **named):
    method = f"search:max_relative_step={ceiling},search_prob={prob}"
    cell(folder, "ceiling", method, final, average, accuracies, **named)


def lines(axis):
    """The points of each line, by colour and dash; whiskers, levels and crosses left out."""
    return {
        (line.get_color(), line.get_linestyle()): list(
            zip(line.get_xdata(), line.get_ydata(), strict=True)
        )
        for line in axis.get_lines()
        if line.get_marker() in ("o", "s")
    }


def crosses(axis):
    found = [line for line in axis.get_lines() if line.get_marker() == "x"]
    return {
        line.get_color(): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in found
        if len(line.get_xdata())
    }


def test_four_lines_of_a_loss(tmp_path, drawn):
    for ceiling, prob in itertools.product((0.001, 0.01), (0.1, 0.0)):
        trained(tmp_path, ceiling, prob, 1.5 + ceiling + prob, 1.4 + ceiling + prob)
    figure = drawn()
    (axis,) = figure.axes
    assert lines(axis) == {
        (SEARCHED.colour, "-"): [(0.001, 1.4 + 0.001 + 0.1), (0.01, 1.4 + 0.01 + 0.1)],
        (SEARCHED.colour, "--"): [(0.001, 1.5 + 0.001 + 0.1), (0.01, 1.5 + 0.01 + 0.1)],
        (UNSEARCHED.colour, "-"): [(0.001, 1.4 + 0.001), (0.01, 1.4 + 0.01)],
        (UNSEARCHED.colour, "--"): [(0.001, 1.5 + 0.001), (0.01, 1.5 + 0.01)],
    }
    assert axis.get_ylabel() == "test loss"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "search on, averaged",
        "search on, final",
        "search off, averaged",
        "search off, final",
    ]
    assert crosses(axis) == {}
    assert "dead" not in figure.get_suptitle()
    assert [label.get_text() for label in axis.get_xticklabels()] == [".001", ".01"]


def test_a_seed_at_chance_is_a_cross_and_in_no_mean(tmp_path, drawn):
    for seed, loss in enumerate((0.5, 2.31, 0.7)):
        ends = (80.0 + seed, 85.0 + seed) if loss < 1 else (10.0, 10.0)
        trained(tmp_path, 0.005, 0.1, loss, loss, ends, seed=seed, **VGG)
    trained(tmp_path, 0.005, 0.0, None, **VGG)
    figure = drawn()
    (axis,) = figure.axes
    assert lines(axis) == {
        (SEARCHED.colour, "-"): [(0.005, 86.0)],
        (SEARCHED.colour, "--"): [(0.005, 81.0)],
    }
    found = crosses(axis)
    assert found.keys() == {SEARCHED.colour, UNSEARCHED.colour}
    assert all(rate == 0.005 and height < 0.1 for ((rate, height),) in found.values())
    assert axis.get_ylabel() == "test accuracy (%)"
    assert axis.get_ylim()[0] > 70
    words = " ".join(figure.get_suptitle().splitlines())
    assert (
        "×: seeds dead or diverged, in no mean: CIFAR-10 / VGG-16, search on, at 0.005 (1 of 3); "
        "CIFAR-10 / VGG-16, search off, at 0.005 (1 of 1)"
    ) in words


def test_dead_runs_of_a_loss_lie_at_the_upper_edge(tmp_path, drawn):
    trained(tmp_path, 0.03, 0.1, 4.56, 4.56)
    (axis,) = drawn().axes
    ((_, height),) = crosses(axis)[SEARCHED.colour]
    assert height > 0.9
    assert [text.get_text() for text in axis.texts] == ["no values"]


def test_marks_of_one_ceiling_lie_above_each_other_from_the_edge(tmp_path, drawn):
    trained(tmp_path, 0.001, 0.1, 0.5, 0.5, (80.0, 85.0), **VGG)
    trained(tmp_path, 0.02, 0.1, 1.2, 1.2, (40.0, 45.0), **VGG)  # off the axis
    trained(tmp_path, 0.02, 0.0, 2.31, 2.31, (10.0, 10.0), **VGG)  # dead
    trained(tmp_path, 0.03, 0.0, 2.31, 2.31, (10.0, 10.0), **VGG)
    (axis,) = drawn().axes
    marks = {
        (line.get_marker(), *line.get_xdata(), *line.get_ydata())
        for line in axis.get_lines()
        if line.get_marker() in ("v", "x")
    }
    assert marks == {("v", 0.02, 0.03), ("x", 0.02, 0.08), ("x", 0.03, 0.03)}


@pytest.mark.parametrize(
    ("mark", "named", "good", "bad"),
    [
        ("v", VGG, (0.5, 0.5, (90.0, 91.0)), (0.9, 0.9, (60.0, 80.0))),
        ("^", {}, (1.5, 1.4, None), (2.3, 1.6, None)),
    ],
)
def test_what_is_far_off_the_best_is_a_triangle_at_the_edge(
    tmp_path, drawn, mark, named, good, bad
):
    for ceiling, ends in ((0.001, bad), (0.005, good), (0.01, good)):
        trained(tmp_path, ceiling, 0.1, *ends, **named)
    figure = drawn()
    (axis,) = figure.axes
    off = [line for line in axis.get_lines() if line.get_marker() == mark]
    assert [list(line.get_xdata()) for line in off if len(line.get_xdata())] == [[0.001]]
    cut = axis.get_ylim()[0 if mark == "v" else 1]
    assert cut == pytest.approx({"v": 91.0 - 30, "^": 1.4 * 1.6}[mark])
    assert "triangles: off the axis" in figure.get_suptitle()


def test_one_file_for_all_networks_and_a_picture_for_each_on_the_page(tmp_path):
    every_ceiling(tmp_path / "records")
    (path,) = every_figure(findings(tmp_path / "records"), tmp_path / "plots")
    assert path.name == "ceiling.png"
    page = write_report(findings(tmp_path / "records"), tmp_path / "page.html").read_text()
    assert page.count("data:image/png") == 3


def test_panels_in_the_order_of_the_tables(tmp_path, drawn):
    trained(tmp_path, 0.005, 0.1, 1.5, 1.4)
    trained(tmp_path, 0.005, 0.1, 0.5, 0.4, (80.0, 85.0), **VGG)
    figure = drawn()
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["CIFAR-10 / VGG-16", "Python source / GPT-1M"]
    budgets = [axis.get_title(loc="right") for axis in figure.axes]
    assert budgets == ["12 epochs, 1 seed", "6 epochs, 1 seed"]


@pytest.mark.parametrize("vision", VISION)
def test_search_on_and_off_differ_for_every_eye(vision):
    on, off = (lab(kind.colour, vision) for kind in KINDS)
    assert np.linalg.norm(on - off) > 40
