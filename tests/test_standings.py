"""How methods stand on a task of the zoo: against values worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from made_zoo import DECAY, cell, train_loss

from cgqbench.analysis.chance import chance_loss
from cgqbench.analysis.comparison import Comparison, comparisons
from cgqbench.analysis.milestones import Milestone, milestone, reached, smoothed
from cgqbench.analysis.standings import Standing, parts, standings
from cgqbench.output.zoo.tasks import zoo_tasks
from cgqbench.records.reading import runs
from cgqbench.tasks.zoo import EPOCHS


def one(folder: Path) -> Standing:
    (found,) = standings(comparisons(runs(folder)))
    return found


def test_the_reference_is_the_best_of_all_rates_schedules_and_weights(tmp_path: Path) -> None:
    cell(tmp_path, "vae", "adamw:lr=0.001", 110.0, 106.0)
    cell(tmp_path, "vae", "adamw:lr=0.003", 108.0, 107.0)
    cell(tmp_path, "vae", "adamw_cosine:lr=0.003", 105.0, 109.0)
    cell(tmp_path, "vae", "adamw_cosine:lr=0.01", 90.0, seed=0)
    cell(tmp_path, "vae", "adamw_cosine:lr=0.01", None, seed=1)
    cell(tmp_path, "vae", "search", 100.0, 107.1)
    cell(tmp_path, "vae", "prodigy", 106.05, 120.0)
    standing = one(tmp_path)
    assert {kind: result.method for kind, result in standing.tuned.items()} == {
        "adamw": "adamw:lr=0.001",
        "adamw_cosine": "adamw_cosine:lr=0.003",  # of the other a seed diverged
    }
    assert standing.reference is not None
    assert (standing.reference.value, standing.reference.metric) == (105.0, "test_loss")
    untuned = standing.untuned
    assert list(untuned) == ["adamw:lr=0.001", "prodigy", "search"]
    # LineSearch by its average, though its final weights are better here.
    assert untuned["search"].value == 107.1
    assert untuned["prodigy"].value == 106.05
    gaps = {method: standing.gap(result) for method, result in untuned.items()}
    assert gaps["prodigy"] == pytest.approx(1.0)
    assert gaps["search"] == pytest.approx(2.0)
    assert [standing.close(result) for result in untuned.values()] == [True, True, False]
    assert standing.factor(untuned["search"]) == pytest.approx(1.02)
    assert standing.factor(standing.reference) == 1.0


def test_accuracies_are_compared_in_points_and_by_their_errors(tmp_path: Path) -> None:
    cell(tmp_path, "vit", "adamw:lr=0.001", 70.0, 74.0)
    cell(tmp_path, "vit", "adamw_cosine:lr=0.001", 75.0, 74.0)
    cell(tmp_path, "vit", "search", 70.0, 74.7)
    cell(tmp_path, "vit", "dog", 80.0, 79.0)
    standing = one(tmp_path)
    search, dog = standing.untuned["search"], standing.untuned["dog"]
    assert standing.gap(search) == pytest.approx(0.3)
    assert standing.close(search)
    assert standing.gap(dog) == pytest.approx(-5.0)
    assert standing.factor(search) == pytest.approx(25.3 / 20)
    assert standing.factor(dog) == 1.0


def test_no_error_at_all_is_no_division_by_nothing(tmp_path: Path) -> None:
    cell(tmp_path, "finetune", "adamw:lr=0.001", 100.0, 100.0)
    cell(tmp_path, "finetune", "search", 99.0, 99.0)
    assert one(tmp_path).factor(one(tmp_path).untuned["search"]) == pytest.approx(100)


def test_a_method_of_which_a_seed_died_is_near_nothing(tmp_path: Path) -> None:
    cell(tmp_path, "vgg_svhn", "adamw:lr=0.001", 90.0, 91.0)
    for seed, accuracy in enumerate((93.0, None)):
        cell(tmp_path, "vgg_svhn", "search", accuracy, accuracy, seed=seed)
    cell(tmp_path, "vgg_svhn", "dog", 19.6, 19.6, speed=-0.05)  # guesses: its train loss is high
    standing = one(tmp_path)
    search, dog = standing.untuned["search"], standing.untuned["dog"]
    assert (search.died, dog.died) == (1, 1)
    assert search.value == 93.0
    assert standing.factor(search) == standing.factor(dog) == math.inf
    assert not standing.close(search)
    assert standing.factor(standing.untuned["adamw:lr=0.001"]) == 1.0


def test_without_a_reference_nothing_is_compared(tmp_path: Path) -> None:
    cell(tmp_path, "lstm", "search", 1.5, 1.4)
    cell(tmp_path, "lstm", "adamw:lr=0.01", None)
    standing = one(tmp_path)
    assert standing.reference is None
    assert standing.gap(standing.untuned["search"]) is None
    assert not standing.close(standing.untuned["search"])
    assert milestone(standing) is None


def test_the_parts_follow_each_other_and_are_called_so(tmp_path: Path) -> None:
    for task in ("flow", "lstm", "vit", "gcn", "clicks", "convnet"):
        cell(tmp_path, task, "search", 50.0, 50.0)
    found = standings(comparisons(runs(tmp_path)))
    assert [(standing.task, standing.part) for standing in found] == [
        ("convnet", "chosen on"),
        ("gcn", "chosen on"),
        ("lstm", "reported"),
        ("vit", "reported"),
        ("clicks", "fresh"),
        ("flow", "fresh"),
    ]
    titles = ["convnet", "GCN", "LSTM", "ViT", "clicks", "flow"]
    assert [standing.title for standing in found] == titles
    assert {part: [one.task for one in members] for part, members in parts(found).items()} == {
        "reported": ["lstm", "vit"],
        "fresh": ["clicks", "flow"],
        "all": ["convnet", "gcn", "lstm", "vit", "clicks", "flow"],
    }


def test_a_part_of_which_there_is_nothing_or_that_is_all_is_not_shown_apart(
    tmp_path: Path,
) -> None:
    assert parts([]) == {"all": []}
    for task in ("flow", "clicks"):
        cell(tmp_path, task, "search", 1.0, 1.0)
    found = standings(comparisons(runs(tmp_path)))
    assert parts(found) == {"all": found}
    assert list(parts([*found, *standings(one_more(tmp_path / "gcn"))])) == ["fresh", "all"]


def one_more(folder: Path) -> list[Comparison]:
    cell(folder, "gcn", "search", 50.0, 50.0)
    return comparisons(runs(folder))


def test_guessing_in_the_zoo() -> None:
    assert chance_loss({"dataset": "zoo", "network": "gcn"}) == math.log(7)
    assert chance_loss({"dataset": "zoo", "network": "gpt_bf16"}) == math.log(97)
    assert chance_loss({"dataset": "zoo", "network": "vgg_svhn"}) == pytest.approx(2.2364, abs=1e-4)
    assert chance_loss({"dataset": "zoo", "network": "vae"}) is None
    assert chance_loss({"dataset": "zoo", "network": "okapi"}) is None


# --- milestones


def mark(folder: Path) -> Milestone:
    found = milestone(one(folder))
    assert found is not None
    return found


def test_the_steps_to_a_level_are_those_of_the_formula(tmp_path: Path) -> None:
    """The mean of the last 50 steps; a loss that falls twice as fast is there in half the time."""
    cell(tmp_path, "gpt_bf16", "adamw:lr=0.001", 1.5, speed=0.3)
    cell(tmp_path, "gpt_bf16", "adamw:lr=0.003", 1.4, speed=1.0)
    for method, speed in (("search", 2.0), ("prodigy", 0.5), ("dog", 0.01)):
        cell(tmp_path, "gpt_bf16", method, 1.4, speed=speed)
    found = mark(tmp_path)
    level = sum(train_loss(step, 1.0) for step in range(251, 301)) / 50
    assert (found.step, found.loss) == (300, pytest.approx(level))

    def needed(speed: float) -> float:
        # Solves mean over (s - 50, s] of e^(-speed·step / DECAY) = (level - 0.5) / 1.5.
        mean = sum(math.exp(speed * back / DECAY) for back in range(50)) / 50
        return -DECAY / speed * math.log((level - 0.5) / 1.5 / mean)

    assert found.steps["adamw"] == pytest.approx(300, abs=1e-6)
    assert found.steps["search"] == pytest.approx(needed(2.0), abs=0.5)
    assert found.steps["prodigy"] == pytest.approx(needed(0.5), abs=0.5)
    assert found.steps["dog"] is None
    assert "adamw_cosine" not in found.steps


def test_a_short_run_has_its_last_step_for_a_milestone(tmp_path: Path) -> None:
    cell(tmp_path, "lora", "adamw:lr=0.001", 2.0)
    cell(tmp_path, "lora", "search", 2.0, speed=2.0)
    found = mark(tmp_path)
    assert found.step == 200
    assert found.loss == pytest.approx(sum(train_loss(s, 1.0) for s in range(151, 201)) / 50)


def test_the_dead_never_arrive(tmp_path: Path) -> None:
    cell(tmp_path, "gpt_small", "adamw:lr=0.001", 2.0)
    for seed, loss in enumerate((2.0, None)):
        cell(tmp_path, "gpt_small", "search", loss, speed=2.0, seed=seed)
    assert mark(tmp_path).steps["search"] is None


def test_a_curve_is_a_mean_over_seeds_and_ends_where_it_is_not_finite(tmp_path: Path) -> None:
    for seed, speed in enumerate((1.0, 3.0)):
        cell(tmp_path, "gcn", "search", 50.0, speed=speed, seed=seed)
    found = runs(tmp_path)
    steps, losses = smoothed(found)
    assert steps == list(range(1, 201))
    assert losses[0] == pytest.approx((train_loss(1, 1.0) + train_loss(1, 3.0)) / 2)
    means = [sum(train_loss(s, v) for s in range(51, 101)) / 50 for v in (1.0, 3.0)]
    assert losses[99] == pytest.approx(sum(means) / 2)
    found[0].epochs[3]["train_losses"][4] = None
    assert smoothed(found)[0] == list(range(1, 65))
    found[1].epochs[:] = [{**row, "train_losses": None} for row in found[1].epochs]
    assert smoothed(found) == ([], []), "a record of before"


def test_a_level_met_at_once_and_one_met_between() -> None:
    assert reached([8, 16], [1.0, 0.5], 1.0) == 8
    assert reached([8, 16], [1.0, 0.5], 0.75) == 12
    assert reached([], [], 1.0) is None


@pytest.mark.parametrize(("epochs", "steps"), [(EPOCHS, "200 steps"), (2, "40 steps")])
def test_the_table_names_the_steps_that_were_asked_for(
    epochs: int, steps: str, tmp_path: Path
) -> None:
    for method in ("adamw:lr=0.001", "search"):
        cell(tmp_path, "gcn", method, 80.0, epochs=epochs)
    named = zoo_tasks(comparisons(runs(tmp_path))).rows[0][0]
    assert steps in [span.text for line in named.notes for span in line]
