"""Products and lengths of vectors in one block or several, wide or narrow, on both ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from test_accelerator import as_accelerator
from torch import Tensor

from cgq.flat import Layout
from cgq.scalars import Number
from cgq.shards import as_it_is
from cgq.vector import Vector

BLOCKS = [
    [torch.float32],
    [torch.float64],
    [torch.bfloat16],
    [torch.float16, torch.float32],
    [torch.bfloat16, torch.float64, torch.float32],
]


def vector(
    tensors: Sequence[Tensor], scale: float = 1.0, whole: Callable[[Number], Number] = as_it_is
) -> Vector:
    layout = Layout(tensors, [0] * len(tensors), whole)
    buffer = layout.gathered(tensors)
    return Vector(layout, lambda: buffer.parts, scale)


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
    x = vector([torch.tensor([3.0, 4.0])], whole=lambda part: 4.0 * part)
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
