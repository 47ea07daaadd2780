"""What figures say: headings, ticks, legends and edges are true and none is cut off."""

import json
import sys

import pytest
from made_records import landscape as landscape_file
from made_records import row, training, write

from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.findings import findings
from cgqbench.output import figures
from cgqbench.output.figures.dynamics import epoch_ticks
from cgqbench.records.reading import runs
from cgqbench.records.searches import searches

DRAWINGS = {
    "dynamics": figures.dynamics,
    "momentum": figures.ablation_momentum,
    "probability": figures.ablation_probability,
    "bounds": figures.ablation_bounds,
    "landscape": figures.landscape,
}


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws the records of the test's folder; the figure itself, for a look inside."""
    kept = []

    def keep(figure, path):
        kept.append(figure)
        figure.draw_without_rendering()
        return path

    def draw(name):
        # By its module's name: the package has a function of the same name.
        monkeypatch.setattr(sys.modules[f"cgqbench.output.figures.{name}"], "saved", keep)
        (shown,) = searches(tmp_path) if name == "landscape" else comparisons(runs(tmp_path))
        DRAWINGS[name](shown, tmp_path / "figure.png")
        return kept[-1]

    return draw


def heading(figure):
    return figure.get_suptitle()


def texts(axis):
    return [text.get_text() for text in axis.texts]


def ablate(folder, experiment, seeds=2, lost=0, accuracy=98.0, **settings):
    given = ",".join(f"{name}={value}" for name, value in settings.items())
    for seed in range(seeds):
        write(
            folder,
            training(seed, 3, 0.3, accuracy),
            end="diverged" if seed < lost else "finished",
            experiment=experiment,
            method=f"cgq:{given}",
            settings=settings,
            seed=seed,
        )


@pytest.mark.parametrize("epochs", [1, 7, 20, 200])
def test_epochs_are_labelled_from_the_first_to_the_last(epochs):
    ticks = epoch_ticks(epochs)
    assert (ticks[0], ticks[-1]) == (1, epochs)
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 8


def test_dynamics_of_one_epoch_has_one_tick(tmp_path, drawn):
    write(tmp_path, training(0, 1, 0.3, 98.0))
    figure = drawn("dynamics")
    assert all(list(axis.get_xticks()) == [1] for axis in figure.axes)
    assert [axis.get_title(loc="left") for axis in figure.axes][2] == "Step size"
    assert heading(figure) == "MNIST / MLP\n1 epoch, 1 seed"


def test_a_cut_accuracy_axis_says_so(tmp_path, drawn):
    rows = [row(epoch, test_accuracy=97.0 + 0.1 * epoch) for epoch in range(1, 10)]
    write(tmp_path, rows)
    assert drawn("dynamics").axes[1].get_title(loc="left") == "Test accuracy (%)"
    write(tmp_path, [row(1, test_accuracy=10.0)], end=None, method="pal", epochs=9)
    axis = drawn("dynamics").axes[1]
    assert axis.get_title(loc="left") == f"Test accuracy (%), axis cut at {axis.get_ylim()[0]:g}"


@pytest.mark.parametrize(("count", "length"), [(3, 300), (20, 45), (40, 5)])
def test_the_legend_lies_within_the_figure(tmp_path, drawn, count, length):
    for number in range(count):
        label = f"{number} {'long name ' * 30}"[:length]
        write(tmp_path, training(0, 2, 0.3, 98.0), method=f"m{number}", label=label)
    figure = drawn("dynamics")
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert len(legend.get_texts()) == count
    assert all(axis.get_window_extent().height > 150 for axis in figure.axes)


def test_momentum_marks_outliers_at_the_edge_with_their_value(tmp_path, drawn):
    for value, accuracy in (("dai_yuan", 98.2), (0.0, 98.0), (0.5, 98.1), (0.9, 87.0)):
        ablate(tmp_path, "figure3a", accuracy=accuracy, momentum=value)
    figure = drawn("momentum")
    losses, accuracies = figure.axes
    assert heading(figure).splitlines() == [
        "Momentum: MNIST / MLP, CGQ(2pt)",
        "3 epochs, 2 seeds; whiskers: ± standard deviation over seeds",
    ]
    assert [text.startswith("◂ 8") for text in texts(accuracies)] == [True]
    assert accuracies.get_xlim()[0] > 90
    assert len([tick for tick in losses.get_xticks() if 0.01 < tick < 1]) >= 3
    names = [label.get_text() for label in losses.get_yticklabels()]
    assert names == ["Dai–Yuan", "fixed 0", "fixed 0.5", "fixed 0.9"]


def test_probability_says_what_diverged_in_words_that_cannot_collide(tmp_path, drawn):
    ablate(tmp_path, "figure3b", search_prob=0.5)
    assert "diverged" not in heading(drawn("probability"))
    ablate(tmp_path, "figure3b", lost=1, search_prob=0.6)
    ablate(tmp_path, "figure3b", lost=2, search_prob=0.62)
    figure = drawn("probability")
    assert "×: seeds diverged, at p=0.6 (1 of 2), p=0.62 (2 of 2)" in heading(figure)
    assert texts(figure.axes[0]) == []


def test_bounds_speak_of_hatching_where_there_is_any(tmp_path, drawn):
    ablate(tmp_path, "figure3c", lr=0.1, max_momentum=0.5)
    assert "hatched" not in heading(drawn("bounds"))
    ablate(tmp_path, "figure3c", lost=1, lr=0.3, max_momentum=0.5)
    assert "3 epochs, 2 seeds; mean over seeds; hatched: seeds diverged" in heading(drawn("bounds"))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("momentum", {"momentum": 0.5}),
        ("probability", {"search_prob": 0.5}),
        ("bounds", {"lr": 0.1, "max_momentum": 0.5}),
    ],
)
def test_an_ablation_where_every_seed_diverged(tmp_path, drawn, name, settings):
    experiment = {"momentum": "figure3a", "probability": "figure3b", "bounds": "figure3c"}
    ablate(tmp_path, experiment[name], lost=2, **settings)
    said = [text for axis in drawn(name).axes for text in texts(axis)]
    assert said == (["–\n2/2 diverged"] if name == "bounds" else ["no values"] * 2)


def test_a_method_that_has_no_place_in_an_ablation_is_left_out(tmp_path):
    write(tmp_path, training(0, 3, 0.2, 98.0), experiment="figure3c", settings={"lr": 0.1})
    (path,) = figures.every_figure(findings(tmp_path), tmp_path / "plots")
    assert path.name == "figure3c-mnist-mlp-dynamics.png"
    ablate(tmp_path, "figure3c", lr=0.1, max_momentum=0.5)
    (path,) = figures.every_figure(findings(tmp_path), tmp_path / "plots")
    assert path.name == "figure3c-mnist-mlp.png"


def test_the_landscape_s_frame_holds_the_parabolas_minima(tmp_path, drawn):
    path = landscape_file(tmp_path, 1)
    first, line = map(json.loads, path.read_text().splitlines())
    # Least at α = 4, far beyond the grid; and at α = 0.25 with 0.2 - 8²/(4·16) = -0.8.
    line["two_point"], line["least_squares"] = [0.05, -0.4, 0.2], [16.0, -8.0, 0.2]
    path.write_text(f"{json.dumps(first)}\n{json.dumps(line)}\n")
    low, _ = drawn("landscape").axes[0].get_ylim()
    assert -1.2 < low < -0.8, "no further than the minimum within the grid"


def test_one_search_is_not_called_both_smoothest_and_roughest(tmp_path, drawn):
    landscape_file(tmp_path, 1)
    (axis,) = drawn("landscape").axes
    assert axis.get_title(loc="left") == "The only search: step 1, epoch 1"


@pytest.mark.parametrize("name", ["loss", "slope", "step_size"])
def test_a_search_with_a_null_is_left_out(tmp_path, name):
    path = landscape_file(tmp_path, 3)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[2][name] = None
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (found,) = searches(tmp_path)
    assert [line["step"] for line in found.lines] == [1, 35]
    assert figures.every_figure(findings(tmp_path), tmp_path / "plots")
