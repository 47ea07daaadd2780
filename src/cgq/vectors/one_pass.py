"""Work on long vectors of a GPU in one pass over memory, where Triton is there to do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cgq.rules.scalars import Number, as_tensor, as_tensors
from cgq.vectors.layout import Layout

BLOCK, WARPS = 1024, 4  # elements that a program takes, and how: as is fastest on an H200
MOST = 5  # vectors that are multiplied in one pass: a plan asks for no more
PAIRS = MOST * (MOST + 1) // 2


_found: dict[torch.device, Any] = {}


def _kernels(device: torch.device) -> Any:
    """Triton's kernels; None where it is missing or cannot compile (it needs a C compiler)."""
    # Within a capture none can be loaded: that is no reason to do without them for good.
    captures = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if device not in _found and not captures:
        _found[device] = _tried(device)
    return _found.get(device)


def _tried(device: torch.device) -> Any:
    number = torch.zeros(1, dtype=torch.float32, device=device)
    try:
        from cgq.vectors import triton_kernels as kernels

        _launch(kernels.clear, 1, number, number.bool())
    except Exception:  # whatever a compiler may raise
        return None
    return kernels


def serves(layout: Layout) -> bool:
    """Whether vectors of these parameters can be handled here: of float32, on one CUDA device."""
    on_cuda = layout.is_single and layout.device.type == "cuda"
    return on_cuda and _kernels(layout.device) is not None


def combine(
    out: Tensor, theta: Tensor, kept: Number | None, terms: Sequence[tuple[Tensor, Number]]
) -> None:
    """out ← kept·θ + Σ factor·vector of at most two terms; None: all of θ."""
    device = out.device
    vectors, factors = [v for v, _ in terms], [f for _, f in terms]
    kept, a, b = _tensors(device, kept, *[*factors, None, None][:2])
    x, y = [*vectors, out, out][:2]
    _launch(
        _kernels(device).combine, out.numel(), out, theta, kept, x, a, y, b,
        KEPT=kept is not None, TERMS=len(terms),
    )  # fmt: skip


def remember_and_move(
    p: Tensor, h: Tensor | None, r: Tensor, scale: float, beta: Number, lost: Number,
    out: Tensor, theta: Tensor | None, kept: Number | None, from_r: Number | None, from_p: Number,
) -> None:  # fmt: skip
    """p ← scale·r + βp, h ← scale·r and out ← kept·θ + from_r·scale·r + from_p·p.

    Without h or θ where there is none. Where the batch is lost, nothing is written.
    """
    device = out.device
    beta, lost, *numbers = _tensors(device, beta, lost, kept, from_r, from_p)
    _launch(
        _kernels(device).remember_and_move, p.numel(), p, h, r, scale, beta, lost,
        theta, out, *numbers, HAS_H=h is not None, FROM_THETA=theta is not None,
        KEPT=kept is not None, FROM_R=from_r is not None,
    )  # fmt: skip


def clear(vector: Tensor, lost: Number) -> None:
    """Make it zero where `lost` is true."""
    lost = lost if isinstance(lost, Tensor) else as_tensor(lost, vector.device)
    _launch(_kernels(vector.device).clear, vector.numel(), vector, lost)


def products(vectors: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> list[Tensor]:
    """The inner products of these pairs of up to five vectors, in float64."""
    size, device = vectors[0].numel(), vectors[0].device
    places = [max(pair) * (max(pair) + 1) // 2 + min(pair) for pair in pairs]
    programs = -(-size // BLOCK)
    # Of these, pairs that are not asked for hold anything.
    sums = torch.empty(PAIRS, programs, dtype=torch.float32, device=device)
    _launch(
        _kernels(device).products, size, sums, *[*vectors, *MOST * [None]][:MOST],
        VECTORS=len(vectors), PAIRS=sum({1 << place for place in places}),
    )  # fmt: skip
    totals = sums[: max(places) + 1].sum(1, dtype=torch.float64).unbind()
    return [totals[place] for place in places]


def _tensors(device: torch.device, *numbers: Number | None) -> list[Any]:
    """The numbers that there are, on the device."""
    tensors = iter(as_tensors(device, *(number for number in numbers if number is not None)))
    return [None if number is None else next(tensors) for number in numbers]


def _launch(kernel: Any, size: int, *arguments: Any, **constants: Any) -> None:
    """On all elements of vectors of this size: of those of the kernel the last but constants."""
    if size:  # on the device of the vectors: Triton launches on the current one
        with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
            kernel[(-(-size // BLOCK),)](
                *arguments,
                size,
                BLOCK=BLOCK,
                num_warps=WARPS,
                enable_fp_fusion=True,
                **constants,
            )
