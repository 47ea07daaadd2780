"""The figure over base rates: its numbers, its edges and its words."""

import pytest
from made_records import write
from made_sweeps import any_rate as every_rate
from made_sweeps import cell, keeping

from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.findings import findings
from cgqbench.output.figures import any_rate, every_figure
from cgqbench.output.page.report import write_report
from cgqbench.records.reading import runs


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws the records of the test's folder; the figure itself."""

    def draw():
        kept = keeping(monkeypatch, "any_rate")
        (comparison,) = comparisons(runs(tmp_path))
        any_rate(comparison, tmp_path / "figure.png")
        return kept[-1]

    return draw


def alone(folder, lr, final, average=None, base="adamw", **named):
    cell(folder, "any_rate", f"{base}:lr={lr}", final, average, **named)


def searched(folder, lr, final, average=None, base="adamw", **named):
    cell(folder, "any_rate", f"search:base={base},lr={lr}", final, average, **named)


def heights(axis):
    """The heights of each line's points, without whiskers and levels."""
    drawn = [line for line in axis.get_lines() if line.get_linestyle() != "None"]
    return [list(line.get_ydata()) for line in drawn if len(line.get_ydata()) > 2]


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def marks(axis, mark):
    found = [line for line in axis.get_lines() if line.get_marker() == mark]
    return [
        (rate, line.get_color(), height)
        for line in found
        if line.get_transform() != axis.transData
        for rate, height in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def test_equal_losses_are_not_said_to_be_exactly_equal(tmp_path, drawn):
    for lr, ours in ((0.1, 1.5), (1e-6, 1.50001), (0.001, 1.49999)):
        searched(tmp_path, lr, 1.7, ours)
    (axis,) = drawn().axes
    assert axis.get_title(loc="right") == "LineSearch: at most 0.01 % from its median, 1.500"


def test_seeds_that_were_not_run_at_every_rate_do_not_count(tmp_path, drawn):
    for lr, ours in ((0.1, 1.5), (1e-6, 1.5014), (0.001, 1.5)):
        searched(tmp_path, lr, 1.7, ours)
    searched(tmp_path, 0.001, 1.7, 1.8, seed=1)
    (axis,) = drawn().axes
    assert axis.get_title(loc="right") == "LineSearch: at most 0.10 % from its median, 1.500"
    assert [1.5014, 1.5, 1.5] in heights(axis)


def test_a_loss_out_of_sight_makes_no_room_below(tmp_path, drawn):
    for lr, loss in ((1e-6, 4.5), (0.001, 1.25), (1.0, 208.0)):
        alone(tmp_path, lr, loss)
        searched(tmp_path, lr, 1.2, 1.15)
    alone(tmp_path, 0.1, 3.0, seed=0)
    alone(tmp_path, 0.1, 208.0, seed=1)  # whose whisker reaches below zero
    (axis,) = drawn().axes
    bottom, top = axis.get_ylim()
    assert bottom == pytest.approx(1.15 - 0.05 * (top - 1.15))
    assert top < 6.0


def test_lines_of_a_base_by_rising_rate(tmp_path, drawn):
    for lr, loss, ours in ((0.1, 3.0, 1.5), (1e-6, 4.5, 1.52), (0.001, 2.0, 1.48)):
        alone(tmp_path, lr, loss, loss - 0.1)
        searched(tmp_path, lr, 1.7, ours)
    figure = drawn()
    (axis,) = figure.axes
    assert axis.get_xscale() == "log"
    assert heights(axis) == [[4.4, 1.9, 2.9], [4.5, 2.0, 3.0], [1.52, 1.48, 1.5]]
    # The median is 1.5; 1.52 and 1.48 are 0.02 / 1.5 = 1.333… % from it, rounded up.
    words = axis.get_title(loc="right")
    assert words == "LineSearch: at most 1.34 % from its median, 1.500"
    assert axis.get_title(loc="left") == "AdamW"
    assert legend_of(figure) == [
        "LineSearch, averaged",
        "alone, final weights",
        "alone, averaged",
        "guessing, 4.57",
    ]
    assert "diverged" not in figure.get_suptitle()
    assert "above the axis" not in figure.get_suptitle()


def test_whiskers_are_the_spread_over_seeds(tmp_path, drawn):
    for seed, ours in enumerate((1.4, 1.5, 1.6)):
        searched(tmp_path, 0.1, 1.7, ours, seed=seed)
    figure = drawn()
    (axis,) = figure.axes
    (bar,) = axis.collections
    ((_, low), (_, high)) = bar.get_segments()[0]
    assert (low, high) == pytest.approx((1.4, 1.6))
    assert "6 epochs, 3 seeds; whiskers" in figure.get_suptitle()
    assert axis.get_title(loc="right") == "", "one rate says nothing about rates"


def test_what_diverged_or_left_the_axis_is_marked_at_its_edge(tmp_path, drawn):
    for lr, loss in ((0.001, 2.0), (0.1, 77.0), (1.0, None)):
        alone(tmp_path, lr, loss)
        searched(tmp_path, lr, 1.5, 1.4)
    searched(tmp_path, 1.0, None, seed=1)
    figure = drawn()
    (axis,) = figure.axes
    assert axis.get_ylim()[1] < 6, "a little above guessing"
    (high,) = marks(axis, "^")
    assert high[0] == 0.1
    lost = marks(axis, "x")
    assert [rate for rate, *_ in lost] == [1.0, 1.0]
    assert len({height for *_, height in lost}) == len({colour for _, colour, _ in lost}) == 2
    assert axis.get_title(loc="right").endswith("median, 1.400, × left out")
    assert figure.get_suptitle().splitlines()[1:] == [
        "6 epochs, 1 to 2 seeds; whiskers: ± standard deviation over seeds; ▲: above the axis",
        "×: seeds diverged: AdamW lr=1.0 (1 of 1), LineSearch base=adamw, lr=1.0 (1 of 2)",
    ]


def test_without_averages_the_final_weights_are_shown(tmp_path, drawn):
    for lr, ours in ((0.001, 1.5), (0.1, 1.6)):
        searched(tmp_path, lr, ours)
        alone(tmp_path, lr, 2.0)
    figure = drawn()
    assert figure.axes[0].get_title(loc="right").endswith("3.23 % from its median, 1.550")
    assert legend_of(figure)[:2] == ["LineSearch, final weights", "alone, final weights"]
    assert "alone, averaged" not in legend_of(figure)


def test_three_bases_leave_no_empty_panel(tmp_path, drawn):
    for base in ("adamw", "sgd", "muon"):
        searched(tmp_path, 0.1, 1.5, 1.4, base=base)
    axes = drawn().axes
    assert [axis.get_title(loc="left") for axis in axes] == ["AdamW", "SGD", "Muon"]
    assert [axis.get_xlabel() != "" for axis in axes] == [False, True, True]


def test_where_everything_diverged(tmp_path, drawn):
    searched(tmp_path, 0.1, None)
    searched(tmp_path, 0.1, 1.5, 1.4, base="sgd")
    lost, other = drawn().axes
    assert [text.get_text() for text in lost.texts] == ["no values"]
    assert len(other.get_yticks()) > 2, "which both panels share"


def test_a_task_of_one_s_own_has_no_loss_of_guessing(tmp_path, drawn):
    named = {"experiment": "any_rate", "task": "own.py", "method": "adamw:lr=0.1"}
    write(tmp_path, [{"kind": "epoch", "epoch": 1, "test_loss": 90.0}], **named)
    figure = drawn()
    assert legend_of(figure) == ["LineSearch, final weights", "alone, final weights"]
    assert marks(figure.axes[0], "^") == []


def test_the_experiment_has_one_figure_and_a_page_with_it(tmp_path):
    every_rate(tmp_path / "records", seeds=1)
    (path,) = every_figure(findings(tmp_path / "records"), tmp_path / "plots")
    assert path.name == "any_rate-python-source-gpt-1m.png"
    page = write_report(findings(tmp_path / "records"), tmp_path / "page.html").read_text()
    assert page.count("data:image/png") == 1
    assert "No curves: 56 lines" in page
    labels = [f'<th scope="row">{name} lr=1e-06' for name in ("LineSearch base=adamw,", "AdamW")]
    places = [page.index(label) for label in labels]
    assert places == sorted(places)
