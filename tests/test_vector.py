"""Products and lengths of vectors in one block or several, wide or narrow, on both ways."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from test_accelerator import as_accelerator
from torch import Tensor

from cgq import CGQ, hestenes_stiefel
from cgq.vectors.layout import Layout
from cgq.vectors.products import DeviceVector, Dots, Vector, pairs_of, share_ahead
from cgq.vectors.sharding import Reduce
from ids import option_id

BLOCKS = [
    [torch.float32],
    [torch.float64],
    [torch.bfloat16],
    [torch.float16, torch.float32],
    [torch.bfloat16, torch.float64, torch.float32],
]


def vector(tensors: Sequence[Tensor], scale: float = 1.0, reduce: Reduce | None = None) -> Vector:
    layout = Layout(tensors, [0] * len(tensors), reduce)
    buffer = layout.gathered(tensors)
    return kind_for(layout)("x", layout, {}, lambda: buffer.parts, scale)


def kind_for(layout: Layout) -> type[Vector]:
    return Vector if layout.on_host else DeviceVector


@pytest.mark.parametrize("scale", [1.0, -3.0])
@pytest.mark.parametrize("dtypes", BLOCKS, ids=str)
@pytest.mark.parametrize("accelerator", [False, True])
def test_the_product_with_itself_and_its_root(
    accelerator: bool, dtypes: list[torch.dtype], scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if accelerator:
        as_accelerator(monkeypatch)
    torch.manual_seed(0)
    tensors = [torch.randn(40, 50).to(dtype) for dtype in dtypes for _ in range(2)]
    squares = scale**2 * sum(float(tensor.double().square().sum()) for tensor in tensors)
    x = vector(tensors, scale)
    # Narrow numbers are summed wide: in bf16 the sum would be off by a hundredth. In any order, the
    # sum of n positive numbers is off by at most (n - 1)ε/2 of itself; each was rounded before.
    wide = torch.float64 if dtypes == [torch.float64] else torch.float32
    rel = sum(tensor.numel() for tensor in tensors) * torch.finfo(wide).eps / 2
    assert rel < 1e-3
    assert float(x @ x) == pytest.approx(squares, rel=rel)
    assert float(x.length()) == pytest.approx(math.sqrt(squares), rel=rel)


@pytest.mark.parametrize("accelerator", [False, True])
def test_a_length_is_of_all_shards(accelerator: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if accelerator:
        as_accelerator(monkeypatch)
    x = vector(
        [torch.tensor([3.0, 4.0])],
        reduce=lambda parts, along: ([4.0 * part for part in parts], along),
    )
    assert float(x @ x) == pytest.approx(100.0)
    assert float(x.length()) == pytest.approx(10.0)


@pytest.mark.parametrize("worst", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_shows(worst: float, monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    for dtype in (torch.float32, torch.bfloat16):
        x = vector([torch.tensor([1.0, worst]).to(dtype)])
        assert not torch.isfinite(x.length())
        assert not torch.isfinite(x @ x)


def test_no_length_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    as_accelerator(monkeypatch)
    assert float(vector([torch.zeros(3)]).length()) == 0.0
    assert float(vector([torch.zeros(0)]).length()) == 0.0


def test_products_are_kept_by_name_and_not_by_place() -> None:
    """A vector made where another one was in memory is none the wiser."""
    layout = Layout([torch.zeros(3)], [0])
    dots: Dots = {}

    def named(name: str, value: float) -> Vector:
        tensor = torch.full((3,), value)
        return Vector(name, layout, dots, lambda: [tensor])

    fixed, places = named("fixed", 2.0), set()
    for number in range(100):
        gone = named(f"x{number}", float(number))
        places.add(id(gone))
        assert float(fixed @ gone) == float(gone @ fixed) == 6.0 * number
        assert float(gone @ gone) == 3.0 * number**2
        del gone
    assert len(places) < 100, "memory was used again, which is the point"
    assert len(dots) == 200


@pytest.mark.parametrize("accelerator", [False, True])
def test_a_product_is_computed_once(accelerator: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if accelerator:
        as_accelerator(monkeypatch)
    layout, dots, read = Layout([torch.zeros(3)], [0]), Dots(), []

    def parts(name: str) -> Any:
        read.append(name)
        return [torch.arange(3.0)]

    kind = kind_for(layout)
    x, y = (kind(name, layout, dots, partial(parts, name)) for name in "xy")
    for _ in range(3):
        assert float(x @ y) == float(y @ x) == 5.0
        assert float(2 * x.inner(y, [0.5])) == 5.0
    assert sorted(read) == ["x", "y"]


@pytest.mark.parametrize("accelerator", [False, True])
def test_all_products_of_shards_are_one_collective(
    accelerator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if accelerator:
        as_accelerator(monkeypatch)
    collectives = []

    def reduce(parts: list[Any], along: list[Any]) -> tuple[list[Any], list[Any]]:
        collectives.append(len(parts))
        return [2.0 * part for part in parts], along

    tensors = [torch.arange(3.0), torch.arange(2.0)]
    layout, dots = Layout(tensors, [0, 1], reduce), Dots()
    buffer = layout.gathered(tensors)
    kind = kind_for(layout)
    vectors = [kind(name, layout, dots, lambda: buffer.parts, 3.0) for name in "gphfθ"]
    share_ahead(pairs_of([*vectors[:2], None, *vectors[2:]], None))
    for x in vectors:
        for y in vectors:
            assert float(x @ y) == pytest.approx(9.0 * 2.0 * 6.0)
            assert float(x.inner(y, [1.0, 2.0])) == pytest.approx(9.0 * 2.0 * (5.0 + 2.0))
        assert float(x.length()) == pytest.approx(math.sqrt(108.0))
    assert collectives == [15 * len(layout.spans)]


def test_a_host_computes_ahead_what_is_named_and_a_device_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors = [torch.arange(3.0), torch.arange(2.0)]
    for is_device in (False, True):
        if is_device:
            as_accelerator(monkeypatch)
        layout, dots = Layout(tensors, [0, 0]), Dots()
        buffer = layout.gathered(tensors)
        vectors = [kind_for(layout)(name, layout, dots, lambda b=buffer: b.parts) for name in "xy"]
        share_ahead(pairs_of(vectors, {("x", "y")}))
        assert list(dots) == ([] if is_device else [("x", "y")])


def test_products_in_pieces_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cgq.vectors.products.PIECE", 7)
    torch.manual_seed(0)
    tensors = [torch.randn(size).double() for size in (5, 7, 8, 23)]
    layout, dots = Layout(tensors, [0] * 4), Dots()
    one, other = layout.gathered(tensors), layout.gathered([-2.0 * tensor for tensor in tensors])
    x, y = (
        Vector("x", layout, dots, lambda: one.parts),
        Vector("y", layout, dots, lambda: other.parts),
    )
    square = sum(float(tensor.square().sum()) for tensor in tensors)
    share_ahead(pairs_of([x, y], None))
    assert len(dots) == 3
    assert x @ x == pytest.approx(square, rel=1e-14)
    assert x @ y == pytest.approx(-2.0 * square, rel=1e-14)
    assert y @ y == pytest.approx(4.0 * square, rel=1e-14)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"momentum": hestenes_stiefel, "nesterov": True, "weight_decay": 0.01},
    {"max_relative_step": 0.01, "weight_decay": 0.01, "decoupled_weight_decay": True},
    {"max_relative_step": 0.01, "weight_decay": 0.01, "momentum": 0.9},
]


@pytest.mark.parametrize("accelerator", [False, True])
@pytest.mark.parametrize("search_prob", [1.0, 0.0])
@pytest.mark.parametrize("options", OPTIONS, ids=option_id)
def test_a_step_over_shards_makes_one_collective_of_its_products(
    options: dict[str, Any],
    search_prob: float,
    accelerator: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loss comes along. The ranks agree on each probe in one more."""
    if accelerator:
        as_accelerator(monkeypatch)
    collectives = []

    def reduce(parts: list[Any], along: list[Any]) -> tuple[list[Any], list[Any]]:
        collectives.append(len(along))
        return parts, along

    monkeypatch.setattr("cgq.conjugate_descent.reduction", lambda params, ranks: reduce)
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(3, 2).double()) for _ in range(2)]
    optimizer = CGQ(
        [{"params": weights[:1], "lr": 0.3}, {"params": weights[1:], "lr": 0.1}],
        search_prob=search_prob,
        **options,
    )
    for step in range(1, 6):
        optimizer.step(lambda: sum((weight - 1.0).square().sum() for weight in weights))
        assert (optimizer.last_search is not None) >= (search_prob == 1.0)
        assert len(collectives) == step


@pytest.mark.parametrize("accelerator", [False, True])
def test_every_rank_sends_as_many_numbers(
    accelerator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a collective would wait for ever, or add what does not belong together."""
    monkeypatch.setattr("cgq.vectors.layout.GATHERED", 7)
    if accelerator:
        as_accelerator(monkeypatch)
    sent = []

    def reduce(parts: list[Any], along: list[Any]) -> tuple[list[Any], list[Any]]:
        sent[-1].append(len(parts))
        return parts, along

    for shards in ([4, 4, 1, 1], [4, 3, 0, 0], [0, 0, 0, 0]):
        sent.append([])
        x = vector([torch.ones(size) for size in shards], reduce=reduce)
        share_ahead(pairs_of([x], None))
        # A device squares a norm of float32: off by its rounding.
        assert float(x @ x) == pytest.approx(sum(shards), rel=1e-6)
    assert sent[0] == sent[1] == sent[2]
