"""Numbers of a GPU as formulas, of which one kernel computes all that are asked for at once.

A step decides by a hundred operations on single numbers. Each would be a kernel of its own.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cgq.rules.scalars import Deferred, Number

HEAD = """import triton
import triton.language as tl

@triton.jit
def numbers(out{inputs}):
    here = tl.arange(0, 1)
"""


class Formula(Deferred):
    """An operation on numbers, some of which may be formulas too; conditions are 1.0 and 0.0.

    `form` is in Triton's language. Each operation is rounded by itself, in float64, as torch and
    the host do: they give the same bits.
    """

    __slots__ = ("_form", "_operands", "_value")

    def __init__(self, form: str, *operands: Number, value: Tensor | None = None) -> None:
        self._form, self._operands, self._value = form, operands, value

    def __add__(self, other: Number) -> Formula:
        return Formula("{} + {}", self, other)

    def __sub__(self, other: Number) -> Formula:
        return Formula("{} - {}", self, other)

    def __rsub__(self, other: Number) -> Formula:
        return Formula("{} - {}", other, self)

    def __mul__(self, other: Number) -> Formula:
        return Formula("{} * {}", self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Number) -> Formula:
        return Formula("{} / {}", self, other)

    def __rtruediv__(self, other: Number) -> Formula:
        return Formula("{} / {}", other, self)

    def __pow__(self, exponent: float) -> Formula:
        forms = {0.5: "tl.sqrt({0})", 2.0: "{0} * {0}"}
        if exponent not in forms:
            raise NotImplementedError(f"No form for the power {exponent}: add it to Formula.")
        return Formula(forms[exponent], self)

    def __neg__(self) -> Formula:
        return self * -1.0

    def __abs__(self) -> Formula:
        return Formula("tl.abs({})", self)

    def __lt__(self, other: Number) -> Formula:
        return Formula("({} < {}).to(tl.float64)", self, other)

    def __le__(self, other: Number) -> Formula:
        return Formula("({} <= {}).to(tl.float64)", self, other)

    def __gt__(self, other: Number) -> Formula:
        return Formula("({} > {}).to(tl.float64)", self, other)

    def __ge__(self, other: Number) -> Formula:
        return Formula("({} >= {}).to(tl.float64)", self, other)

    def __eq__(self, other: Number) -> Formula:  # type: ignore[override]
        return Formula("({} == {}).to(tl.float64)", self, other)

    def __ne__(self, other: Number) -> Formula:  # type: ignore[override]
        return Formula("({} != {}).to(tl.float64)", self, other)

    def __and__(self, other: Number) -> Formula:
        return Formula("{} * {}", self, other)

    __rand__ = __and__
    __hash__ = object.__hash__

    def choose(self, yes: Number, no: Number) -> Formula:
        return Formula("tl.where({} != 0, {}, {})", self, yes, no)

    def least(self, other: Number) -> Formula:  # NaN where one is
        return Formula("tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})", self, other)

    def stacked(
        self, device: torch.device, numbers: Sequence[Number], out: Tensor | None = None
    ) -> Tensor:
        return _Kernel(numbers).launched(device, out)

    def tensor(self, device: torch.device) -> Tensor:
        if self._value is None:
            (self._value,) = self.stacked(device, [self]).unbind()
        return self._value


def formula(number: Number) -> Number:
    """A tensor as a formula; what the host knows stays a float, which formulas are made of too."""
    return Formula("", value=number) if isinstance(number, Tensor) else number


class _Kernel:
    """What computes some numbers, with all that they are made of."""

    def __init__(self, numbers: Sequence[Number]) -> None:
        self._inputs: list[Tensor] = []
        self._lines: list[str] = []
        self._names: dict[object, str] = {}
        self._count = len(numbers)
        for place, number in enumerate(numbers):
            self._lines.append(f"tl.store(out + here + {place}, {self._name(number)})")

    def _name(self, number: Number) -> str:
        """What holds the number, once the lines so far are done."""
        held = number._value if isinstance(number, Formula) else None
        tensor = held if held is not None else number if isinstance(number, Tensor) else None
        key = float(number).hex() if isinstance(number, (int, float)) else id(number)
        if key not in self._names:
            if tensor is not None:
                text = self._loaded(tensor)
            elif isinstance(number, Formula):
                text = number._form.format(*map(self._name, number._operands))
            else:
                text = _exactly(number)
            self._names[key] = name = f"v{len(self._names)}"
            self._lines.append(f"{name} = {text}")
        return self._names[key]

    def _loaded(self, tensor: Tensor) -> str:
        self._inputs.append(tensor)
        return f"tl.load(x{len(self._inputs) - 1} + here).to(tl.float64)"

    def launched(self, device: torch.device, out: Tensor | None) -> Tensor:
        """Its numbers as one vector."""
        if out is None:
            out = torch.empty(self._count, dtype=torch.float64, device=device)
        inputs = "".join(f", x{place}" for place in range(len(self._inputs)))
        source = HEAD.format(inputs=inputs) + "".join(f"    {line}\n" for line in self._lines)
        with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]
            # Not fused: a·b + c would be rounded once.
            _compiled(source)[(1,)](out, *self._inputs, num_warps=1, enable_fp_fusion=False)
        return out


def _exactly(number: float) -> str:
    """The number by its bits: Triton would round what is written with a point to float32."""
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return f"tl.full([1], {bits}, tl.int64).to(tl.float64, bitcast=True)"


@cache
def _compiled(source: str) -> Any:
    """The kernel of a source text, all of it made here; Triton asks for it as for a file's."""
    name = f"<numbers {hash(source)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    space: dict[str, Any] = {"__name__": "cgq.vectors.formula"}
    exec(compile(source, name, "exec"), space)
    return space["numbers"]
