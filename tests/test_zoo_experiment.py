"""The zoo as an experiment: which methods on which tasks, and how long."""

from __future__ import annotations

import pytest

from cgqbench.experiments import EXPERIMENTS
from cgqbench.methods import METHODS, chosen
from cgqbench.records.problem import TITLES
from cgqbench.tasks.zoo import EPOCHS, FRESH, MEMBERS, PARTS

ZOO = EXPERIMENTS["zoo"]


def test_every_task_has_its_batches_and_its_epochs() -> None:
    found = {(one.dataset, one.network): (one.epochs, one.batch_size) for one in ZOO.columns}
    assert found == {("zoo", name): (EPOCHS, one.batch_size) for name, one in MEMBERS.items()}
    assert set(MEMBERS) <= set(TITLES)


def test_the_reference_is_five_rates_constant_and_with_a_schedule() -> None:
    for schedule in ("adamw", "adamw_cosine"):
        rates = [
            chosen(method, "convnet").settings["lr"]
            for method in ZOO.methods
            if method.partition(":")[0] == schedule
        ]
        assert rates == [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
    assert METHODS["adamw_cosine"].schedule is not None
    assert {"schedulefree_adamw", "prodigy", "dadaptation", "dog", "search"} < set(ZOO.methods)


@pytest.mark.parametrize("method", ["adamw:lr=0.01", "search", "schedulefree_adamw"])
def test_a_method_has_the_same_settings_on_every_task(method: str) -> None:
    """Whatever a task is called: families of the paper's networks have settings of their own."""
    settings = [chosen(method, name).settings for name in MEMBERS]
    assert all(one == settings[0] for one in settings)


def test_one_task_can_be_taken_alone() -> None:
    cells = ZOO.cells(seeds=2, only=["gcn", "search"])
    assert [(cell.network, cell.method, cell.seed) for cell in cells] == [
        ("gcn", "search", 0),
        ("gcn", "search", 1),
    ]
    assert {cell.network for cell in ZOO.cells(1)} == set(MEMBERS)
    assert len(ZOO.cells(1, only=["lora", "adamw"])) == 5


@pytest.mark.parametrize("part", PARTS)
def test_a_part_can_be_taken_alone(part: str) -> None:
    assert {cell.network for cell in ZOO.cells(1, only=[part])} == set(PARTS[part])
    both = ZOO.cells(1, only=[part, "reported", "search"])
    assert {cell.network for cell in both} == {*PARTS[part], *PARTS["reported"]}
    assert {cell.method for cell in both} == {"search"}


def test_a_part_narrows_what_else_is_named() -> None:
    assert {cell.network for cell in ZOO.cells(1, only=["fresh", "flow"])} == {"flow"}
    with pytest.raises(ValueError, match="zoo has no such column"):
        ZOO.cells(1, only=["fresh", "gcn"])
    for unknown in ("", "stale"):
        with pytest.raises(ValueError, match=f"zoo has no '{unknown}'. Choose from: adamw"):
            ZOO.cells(1, only=[unknown])
    with pytest.raises(ValueError, match="table1 has no 'fresh'"):
        EXPERIMENTS["table1"].cells(1, only=["fresh"])
    assert len(EXPERIMENTS["table1"].cells(1, only=["mnist"])) == 10
    assert len(ZOO.cells(1, only=["fresh"])) == len(FRESH) * len(ZOO.methods)
