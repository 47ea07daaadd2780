"""How often a step on a host goes over its vectors, and where they lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import cgq.vectors.products
from cgq import CGQ, LineSearch, fletcher_reeves, hestenes_stiefel
from cgq.vectors.layout import LINE, MANY, SMALL, TOGETHER, Layout

OPTIONS: list[tuple[dict[str, Any], int, int]] = [
    ({}, 3, 2),  # g·g, g·h, and g·p for the slope; h·h is the last g·g
    ({"momentum": 0.9}, 2, 1),
    ({"momentum": fletcher_reeves}, 2, 1),
    ({"momentum": hestenes_stiefel}, 4, 4),
    ({"max_relative_step": 0.01, "search_prob": 1.0}, 5, 5),
]


@pytest.mark.parametrize(("options", "searched", "unsearched"), OPTIONS)
def test_each_product_is_made_once(
    options: dict[str, Any], searched: int, unsearched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, dot = [], cgq.vectors.products._dot
    monkeypatch.setattr(cgq.vectors.products, "_dot", lambda a, b: made.append(1) or dot(a, b))
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(4)) for _ in range(3)]
    optimizer = CGQ(weights, lr=0.01, **options)

    def loss() -> Tensor:
        return sum(((weight - 1.0) ** 4).sum() for weight in weights)

    for _ in range(4):
        made.clear()
        optimizer.step(loss)
        assert optimizer.last_search is not None
    assert len(made) == searched * len(weights)
    for _ in range(2):
        made.clear()
        optimizer.step()
    assert len(made) == unsearched * len(weights)


def test_places_are_whole_cache_lines_and_nothing_lies_between() -> None:
    tensors = [torch.ones(size) for size in (3, 64, 65, 1)]
    buffer = Layout(tensors, [0, 0, 1, 1]).zeros()
    assert all(view.storage_offset() % LINE == 0 for view in buffer.views)
    for view in buffer.views:
        view.fill_(1.0)
    assert buffer.blocks[0].sum() == 133.0
    assert [part.numel() for part in buffer.parts] == [3, 64, 65, 1]


def test_many_small_tensors_of_a_group_lie_side_by_side_in_whole_cache_lines() -> None:
    few, many = [3, SMALL + 1, 64], [SMALL + 1, *range(1, MANY + 1)]
    sizes, groups = few + many, [0] * len(few) + [1] * len(many)
    layout = Layout([torch.ones(size) for size in sizes], groups)
    small = [*range(len(few) + 1, len(sizes))]
    assert [span.members for span in layout.spans] == [[0], [1], [2], small, [len(few)]]
    buffer = layout.zeros()
    assert all(part.storage_offset() % LINE == 0 for part in buffer.parts)
    total = sum(range(1, MANY + 1))
    assert [part.numel() for part in buffer.parts] == [*few, total, SMALL + 1]
    for view, size in zip(buffer.views, sizes, strict=True):
        assert view.numel() == size
        view.fill_(1.0)
    assert all(bool((part == 1.0).all()) for part in buffer.parts)
    assert buffer.blocks[0].sum() == sum(sizes)


def test_as_many_small_tensors_lie_together_as_the_cache_holds() -> None:
    count = TOGETHER // SMALL
    layout = Layout([torch.ones(SMALL) for _ in range(count + 1)], [0] * (count + 1))
    assert [len(span.members) for span in layout.spans] == [count, 1]


def test_products_of_many_small_tensors_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, dot = [], cgq.vectors.products._dot
    monkeypatch.setattr(cgq.vectors.products, "_dot", lambda a, b: made.append(1) or dot(a, b))
    weights = [torch.nn.Parameter(torch.randn(4)) for _ in range(MANY)]
    optimizer = CGQ(weights, lr=0.01)
    for _ in range(3):
        made.clear()
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        optimizer.step()
    assert len(made) == 2  # g·g and g·h


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"nesterov": True},
        {"momentum": 0.9, "nesterov": True},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
    ],
)
def test_a_move_in_pieces_is_that_of_the_whole(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tensors in a row, with strides of their own, with gaps, of pairs, and of small ones."""

    def moved() -> list[Tensor]:
        torch.manual_seed(0)
        tensors = [
            torch.randn(40),
            torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
            torch.randn(5, 16)[:, ::2],
            torch.randn(23, dtype=torch.complex64),
            *(torch.randn(3) for _ in range(MANY)),
        ]
        weights = [torch.nn.Parameter(tensor) for tensor in tensors]
        optimizer = CGQ(weights, lr=0.1, **options)
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            optimizer.step()
        states = [optimizer.state[weight].values() for weight in weights]
        return [*weights, *(entry for entries in states for entry in entries)]

    monkeypatch.setattr("cgq.vectors.layout.SMALL", 4)
    whole = moved()
    monkeypatch.setattr("cgq.vectors.layout.PIECE", 16)
    assert all(map(torch.equal, whole, moved()))


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"nesterov": True, "momentum": 0.9}])
def test_a_long_parameter_with_gaps_leaves_what_lies_between(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its gradient has the same gaps, as a slice of one flat gradient may have."""
    monkeypatch.setattr("cgq.vectors.layout.PIECE", 16)
    whole, gradient = torch.zeros(12, 20), torch.ones(12, 20)
    weight = torch.nn.Parameter(whole[:, :10])
    optimizer = CGQ([weight], lr=0.1, **options)
    for _ in range(2):
        weight.grad = gradient[:, :10]
        optimizer.step()
    assert not whole[:, 10:].any()
    assert len(weight.detach().unique()) == 1
    assert float(weight.detach().max()) < 0.0


@pytest.mark.parametrize("sizes", [[40], [3] * MANY])
def test_decay_of_narrow_weights_is_rounded_once(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A factor of 0.9967 is 0.9961 in bf16: the decay would be a sixth too strong."""
    monkeypatch.setattr("cgq.vectors.layout.PIECE", 16)
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(size, dtype=torch.bfloat16)) for size in sizes]
    kept = [weight.detach().clone() for weight in weights]
    optimizer = CGQ(weights, lr=0.1, weight_decay=0.1, decoupled_weight_decay=True)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    weights[0].grad[0] = 1e-30  # so small that nothing but the decay is seen
    optimizer.step()
    factor = 1.0 - 0.1 * optimizer.param_groups[0]["step_size"]
    for weight, before in zip(weights, kept, strict=True):
        assert torch.equal(weight.detach(), (before.double() * factor).bfloat16())


def test_line_search_lands_where_its_snapshot_says() -> None:
    """θ + αd of the kept θ, although the base has left the weights elsewhere."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(50, dtype=torch.float64))
    base = torch.optim.SGD([weight], lr=0.1)
    optimizer = LineSearch(base, search_prob=0.0, max_relative_step=0.01)
    for _ in range(3):
        before = weight.detach().clone()
        weight.grad = torch.randn_like(weight)
        optimizer.step()
        rate = base.param_groups[0]["step_size"]
        torch.testing.assert_close(weight.detach(), before - rate * weight.grad)
        moved = weight.detach() - before
        assert float(moved.norm() / before.norm()) == pytest.approx(0.01)
