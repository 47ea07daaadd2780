"""Each figure is a picture of its size with something on it, and failures name the cure."""

import itertools

import numpy as np
import pytest
from made_records import landscape as landscape_file
from made_records import row, training, write
from made_sweeps import keeping
from PIL import Image

from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.findings import findings
from cgqbench.analysis.roughness import roughness
from cgqbench.output.figures import (
    ablation_bounds,
    ablation_momentum,
    ablation_probability,
    dynamics,
    every_figure,
    has_times,
    landscape,
    over_time,
    over_work,
    run_time,
)
from cgqbench.output.figures.canvas import DPI
from cgqbench.output.palette import STYLES
from cgqbench.records.reading import runs
from cgqbench.records.record import RecordError
from cgqbench.records.searches import searches


def ink(path, width=9.0):
    """The share of the picture that is not white; its width must be as asked."""
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert width is None or image.size[0] == round(width * DPI)
        return float((np.asarray(image.convert("L")) < 250).mean())


def colours(path):
    with Image.open(path) as image:
        return {colour for _, colour in image.convert("RGB").getcolors(1 << 20)}


def rgb(method):
    text = STYLES[method].colour
    return tuple(int(text[place : place + 2], 16) for place in (1, 3, 5))


def only(folder):
    (comparison,) = comparisons(runs(folder))
    return comparison


def two_methods(folder, **cell):
    for seed in range(2):
        write(folder, training(seed, 4, 0.2, 97.0), seed=seed, times=[2.0] * 4, **cell)
        rows = training(seed, 4, 0.4, 98.0)
        write(folder, rows, seed=seed, method="cgq", times=[3.0] * 4, **cell)


def test_dynamics_draws_each_method_in_its_colour(tmp_path):
    two_methods(tmp_path)
    path = dynamics(only(tmp_path), tmp_path / "figures" / "dynamics.png")
    assert 0.02 < ink(path) < 0.5
    assert {rgb("sgd"), rgb("cgq")} <= colours(path)


def test_dynamics_of_diverged_short_null_and_unclassified_runs(tmp_path):
    write(tmp_path, [row(1, train_loss=2.3)], end="diverged", method="pal", epochs=4)
    write(tmp_path, [row(1), row(2)], end=None, method="adam", epochs=4)
    write(tmp_path, [row(1, train_loss=0.0, test_loss=0.5)], method="mine", epochs=4, label="$x_")
    assert ink(dynamics(only(tmp_path), tmp_path / "dynamics.png")) > 0.01


def test_dynamics_of_a_run_that_ends_far_below_its_best(tmp_path):
    rows = [row(1, test_accuracy=95.0), row(2, test_accuracy=60.0)]
    write(tmp_path, rows, method="sgd", epochs=2)
    assert rgb("sgd") in colours(dynamics(only(tmp_path), tmp_path / "dynamics.png"))


def test_the_same_records_draw_the_same_bytes(tmp_path):
    two_methods(tmp_path)
    first = dynamics(only(tmp_path), tmp_path / "first.png").read_bytes()
    assert dynamics(only(tmp_path), tmp_path / "second.png").read_bytes() == first


def test_run_time_needs_times(tmp_path):
    two_methods(tmp_path)
    assert ink(run_time(only(tmp_path), tmp_path / "time.png")) > 0.02
    write(tmp_path / "none", training(0, 2, 0.2, 97.0))
    with pytest.raises(ValueError, match=r"times\.jsonl"):
        run_time(only(tmp_path / "none"), tmp_path / "time.png")


def test_over_time_each_method_is_at_its_own_seconds(tmp_path, monkeypatch):
    two_methods(tmp_path)
    path = over_time(only(tmp_path), tmp_path / "time.png")
    assert ink(path, None) > 0.02
    assert {rgb("sgd"), rgb("cgq")} <= colours(path)
    kept = keeping(monkeypatch, "over_time")
    over_time(only(tmp_path), path)
    for axis in kept[-1].axes:
        drawn = [line for line in axis.get_lines() if len(line.get_xdata())]
        assert [list(line.get_xdata()) for line in drawn] == [[2, 4, 6, 8], [3, 6, 9, 12]]
        assert axis.get_xlim()[0] == 0.0


def test_over_time_of_runs_that_diverged_or_stopped_at_once(tmp_path):
    diverged = [row(1, train_loss=2.3, test_accuracy=10.0)]
    write(tmp_path, diverged, end="diverged", method="pal", epochs=4, times=[1.0])
    write(tmp_path, training(0, 4, 0.2, 97.0), times=[1.0] * 4)
    write(
        tmp_path, training(0, 4, 0.2, 97.0)[:2], end=None, method="cgq", epochs=4, times=[1.0, 2.0]
    )
    assert has_times(only(tmp_path))
    assert ink(over_time(only(tmp_path), tmp_path / "time.png"), None) > 0.01


def test_over_time_only_where_all_ran_on_one_machine_with_times(tmp_path):
    two_methods(tmp_path / "one")
    assert has_times(only(tmp_path / "one"))
    write(tmp_path / "alone", training(0, 4, 0.2, 97.0), times=[1.0] * 4)
    assert not has_times(only(tmp_path / "alone"))
    two_methods(tmp_path / "untimed")
    write(tmp_path / "untimed", training(0, 4, 0.2, 97.0), method="adam")
    assert not has_times(only(tmp_path / "untimed"))
    two_methods(tmp_path / "two")
    write(
        tmp_path / "two",
        training(0, 4, 0.2, 97.0),
        method="adam",
        times=[1.0] * 4,
        hardware="Another",
    )
    assert not has_times(only(tmp_path / "two"))


def test_over_work_each_method_is_at_its_own_passes(tmp_path, monkeypatch):
    for method, passes in (("sgd", 1.0), ("cgq", 2.5)):
        rows = [{**line, "passes": passes} for line in training(0, 4, 0.2, 97.0)]
        write(tmp_path, rows, method=method, epochs=4)
    path = over_work(only(tmp_path), tmp_path / "work.png")
    assert {rgb("sgd"), rgb("cgq")} <= colours(path)
    kept = keeping(monkeypatch, "over_time")
    over_work(only(tmp_path), path)
    for axis in kept[-1].axes:
        drawn = [line for line in axis.get_lines() if len(line.get_xdata())]
        assert [list(line.get_xdata()) for line in drawn] == [[1, 2, 3, 4], [1.5, 3, 4.5, 6]]
        assert axis.get_xlabel() == "passes, in epochs of SGD"
    words = " ".join(text.get_text() for text in kept[-1].texts)
    assert "over the work done" in words
    assert "a backward one as 2 forward ones" in words


def test_ablation_over_momentum(tmp_path):
    momenta = ["polak_ribiere", "dai_yuan", "own_rule", 0.0, 0.5, 0.9]
    for momentum, seed in itertools.product(momenta, range(2)):
        lost = momentum == 0.9 and seed == 0
        write(
            tmp_path,
            training(seed, 3, 0.3, 98.0),
            end="diverged" if lost else "finished",
            experiment="figure3a",
            method=f"cgq:momentum={momentum}",
            seed=seed,
            settings={"momentum": momentum},
        )
    path = ablation_momentum(only(tmp_path), tmp_path / "momentum.png")
    assert ink(path) > 0.01
    assert {rgb("cgq"), rgb("sgd")} <= colours(path)


def test_ablation_over_probability(tmp_path):
    for probability in (0, 0.1, 1):
        write(
            tmp_path,
            training(0, 3, 0.3 + probability, 98.0),
            end="diverged" if probability == 1 else "finished",
            experiment="figure3b",
            method=f"scgq:search_prob={probability}",
            settings={"search_prob": probability},
        )
    alone = ablation_probability(only(tmp_path), tmp_path / "probability.png")
    assert ink(alone) > 0.01
    assert rgb("scgq") in colours(alone)
    assert rgb("sgd") not in colours(alone)
    write(tmp_path, training(0, 3, 0.1, 97.0), experiment="figure3b")
    with_sgd = ablation_probability(only(tmp_path), tmp_path / "probability.png")
    assert rgb("sgd") in colours(with_sgd), "the level of SGD"


def bounds(folder, step, momentum, **cell):
    settings = {"lr": step, "max_momentum": momentum}
    method = f"cgq:lr={step},max_momentum={momentum}"
    rows = training(0, 2, 0.2 + step, 98.0)
    write(folder, rows, experiment="figure3c", method=method, settings=settings, **cell)


def test_ablation_over_bounds_hatches_what_diverged(tmp_path):
    for step, momentum in itertools.product((0.1, 0.3), (0.0, 0.8)):
        bounds(tmp_path / "good", step, momentum)
        lost = step * momentum > 0.2
        bounds(tmp_path / "some", step, momentum, end="diverged" if lost else "finished")
    good = ablation_bounds(only(tmp_path / "good"), tmp_path / "good.png")
    some = ablation_bounds(only(tmp_path / "some"), tmp_path / "some.png")
    assert ink(good) > ink(some) + 0.05
    hatch = (0x9A, 0xA2, 0xAB)
    assert hatch in colours(some)
    assert hatch not in colours(good)


def test_ablation_over_bounds_where_nothing_survived(tmp_path):
    bounds(tmp_path, 0.3, 1.0, end="diverged")
    assert ink(ablation_bounds(only(tmp_path), tmp_path / "bounds.png")) > 0.01


def test_ablation_over_bounds_needs_both_bounds(tmp_path):
    write(tmp_path, training(0, 2, 0.2, 98.0), experiment="figure3c", settings={"lr": 0.1})
    with pytest.raises(ValueError, match="max_momentum"):
        ablation_bounds(only(tmp_path), tmp_path / "bounds.png")


def test_landscape_shows_the_smoothest_and_the_roughest_line(tmp_path):
    landscape_file(tmp_path, 6)
    (found,) = searches(tmp_path)
    rough = [roughness(line) for line in found.lines]
    assert rough[1:] == sorted(rough[1:], reverse=True)
    assert min(rough) == rough[-1] < 0.2 < max(rough)
    path = landscape(found, tmp_path / "landscape.png")
    assert ink(path) > 0.02
    assert rgb("scgq") in colours(path), "the two-point parabola"


def test_roughness_of_a_line_that_cannot_be_judged():
    assert roughness({"grid": [0, 1, 2, 3], "losses": [1, None, 2, 3]}) == np.inf
    assert roughness({"grid": [0, 1, 2, 3], "losses": [2, 2, 2, 2]}) == 0.0


def test_a_damaged_landscape_file_names_the_cure(tmp_path):
    (tmp_path / "x.landscape.jsonl").write_text("not json\n")
    with pytest.raises(RecordError, match="cgq landscape"):
        searches(tmp_path)
    (tmp_path / "x.landscape.jsonl").write_text('{"kind": "ce')
    assert searches(tmp_path) == []


def test_every_figure_that_the_records_allow(tmp_path):
    two_methods(tmp_path / "records")
    bounds(tmp_path / "records", 0.3, 0.8)
    landscape_file(tmp_path / "records", 2)
    write(tmp_path / "records", [], end=None, dataset="svhn", epochs=3)
    for method, passes in (("sgd", 1.0), ("cgq", 3.0)):
        rows = [{**line, "passes": passes} for line in training(0, 4, 0.2, 97.0)]
        write(tmp_path / "records", rows, method=method, dataset="svhn", network="vgg16", epochs=4)
    written = every_figure(findings(tmp_path / "records"), tmp_path / "figures")
    assert [path.name for path in written] == [
        "figure3c-mnist-mlp.png",
        "table1-mnist-mlp-dynamics.png",
        "table1-mnist-mlp-time.png",
        "table1-mnist-mlp-run_time.png",
        "table1-svhn-vgg-16-dynamics.png",
        "paper.png",
        "work-svhn-vgg-16.png",
        "landscape-mnist-mlp-cgq-2pt-seed-0.png",
    ]
    assert all(path.exists() for path in written)
