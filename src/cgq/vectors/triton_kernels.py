"""Kernels in Triton, each of them one pass over memory; `one_pass.py` launches them.

Numbers come by pointers to float64, so that the host need not know them. Vectors are float32.
"""

import triton
import triton.language as tl


@triton.jit
def _inside(size, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return places, places < size


@triton.jit
def _number(pointer):
    return tl.load(pointer).to(tl.float32)


@triton.jit
def _size_if(lost, size, IS_LOST: tl.constexpr):
    """The size, or 0, where nothing is to be read or written."""
    return tl.where((tl.load(lost).to(tl.int32) != 0) == IS_LOST, size, 0)


@triton.jit
def combine(
    out, theta, kept, x, a, y, b, size, KEPT: tl.constexpr, TERMS: tl.constexpr, BLOCK: tl.constexpr
):
    """out ← kept·θ + a·x + b·y."""
    places, inside = _inside(size, BLOCK)
    total = tl.load(theta + places, mask=inside)
    if KEPT:
        total = total * _number(kept)
    if TERMS > 0:
        total = total + _number(a) * tl.load(x + places, mask=inside)
    if TERMS > 1:
        total = total + _number(b) * tl.load(y + places, mask=inside)
    tl.store(out + places, total, mask=inside)


@triton.jit
def remember_and_move(
    p, h, r, scale, beta, lost, theta, out, kept, from_r, from_p, size,
    HAS_H: tl.constexpr, FROM_THETA: tl.constexpr, KEPT: tl.constexpr, FROM_R: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """p ← scale·r + βp, h ← scale·r and out ← kept·θ + from_r·scale·r + from_p·p.

    Where the batch is lost, nothing is written.
    """
    places, inside = _inside(_size_if(lost, size, False), BLOCK)
    residual = scale * tl.load(r + places, mask=inside)
    direction = residual + _number(beta) * tl.load(p + places, mask=inside)
    tl.store(p + places, direction, mask=inside)
    if HAS_H:
        tl.store(h + places, residual, mask=inside)
    move = _number(from_p) * direction
    if FROM_R:
        move = move + _number(from_r) * residual
    if FROM_THETA:
        start = tl.load(theta + places, mask=inside)
        if KEPT:
            start = start * _number(kept)
        move = start + move
    tl.store(out + places, move, mask=inside)


@triton.jit
def clear(vector, lost, size, BLOCK: tl.constexpr):
    """Zeros, where the batch is lost; else nothing is read or written."""
    places, inside = _inside(_size_if(lost, size, True), BLOCK)
    tl.store(vector + places, tl.zeros([BLOCK], tl.float32), mask=inside)


@triton.jit
def _keep(sums, PAIR: tl.constexpr, x, y):
    """A program's part of a product."""
    place = PAIR * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + place, tl.sum(x * y, axis=0))


@triton.jit
def products(
    sums, a, b, c, d, e, size, VECTORS: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr
):
    """Parts of the inner products of up to five vectors, of which PAIRS has the bits."""
    places, inside = _inside(size, BLOCK)
    first = tl.load(a + places, mask=inside, other=0.0)
    if PAIRS & 1:
        _keep(sums, 0, first, first)
    if VECTORS > 1:
        second = tl.load(b + places, mask=inside, other=0.0)
        if PAIRS & 2:
            _keep(sums, 1, first, second)
        if PAIRS & 4:
            _keep(sums, 2, second, second)
    if VECTORS > 2:
        third = tl.load(c + places, mask=inside, other=0.0)
        if PAIRS & 8:
            _keep(sums, 3, first, third)
        if PAIRS & 16:
            _keep(sums, 4, second, third)
        if PAIRS & 32:
            _keep(sums, 5, third, third)
    if VECTORS > 3:
        fourth = tl.load(d + places, mask=inside, other=0.0)
        if PAIRS & 64:
            _keep(sums, 6, first, fourth)
        if PAIRS & 128:
            _keep(sums, 7, second, fourth)
        if PAIRS & 256:
            _keep(sums, 8, third, fourth)
        if PAIRS & 512:
            _keep(sums, 9, fourth, fourth)
    if VECTORS > 4:
        fifth = tl.load(e + places, mask=inside, other=0.0)
        if PAIRS & 1024:
            _keep(sums, 10, first, fifth)
        if PAIRS & 2048:
            _keep(sums, 11, second, fifth)
        if PAIRS & 4096:
            _keep(sums, 12, third, fifth)
        if PAIRS & 8192:
            _keep(sums, 13, fourth, fifth)
        if PAIRS & 16384:
            _keep(sums, 14, fifth, fifth)
