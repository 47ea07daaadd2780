"""Where a step spends its time, beside the floor, which is its passes alone: under a minute.

The floor is the forward and backward passes of a step without an optimizer. What a step takes more
is split into passes that got slower (the weights were moved, and left the cache), vector operations
on all parameters, and the rest, which is Python and small tensors. A vector operation is one on
tensors of at least a thousandth of the parameters.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from networks import mlp, resnet50_parameters
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import cgq
from cgq import CGQ, LineSearch

STEPS = 60  # of each kind, at least
MOST = 800  # steps in which both kinds should be met
SETTLING = 150  # steps after which `LineSearch` no longer searches every batch
VECTOR = 1000  # an operation on more than this part of the parameters counts as one on vectors


class Traffic(TorchDispatchMode):
    """Times the operations on vectors, and counts the numbers they read and write."""

    def __init__(self, numbers: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._least = numbers // VECTOR
        self.is_paused = False
        self.seconds, self.numbers, self.operations = 0.0, 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_paused:
            return func(*args, **kwargs)
        start = time.perf_counter()
        result = func(*args, **kwargs)
        taken = time.perf_counter() - start
        if func._schema.is_mutable or not any(r.alias_info for r in func._schema.returns):
            moved = _moved(func._schema, args, kwargs, result)
            if sum(moved) > self._least:
                self.seconds += taken
                self.numbers += sum(moved)
                self.operations += 1
        return result


def _moved(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[int]:
    """How many numbers an operation reads and writes, of each tensor. A view moves nothing."""
    moved = [] if schema.is_mutable else [_size(result)]
    for index, argument in enumerate(schema.arguments):
        size = _size(args[index] if index < len(args) else kwargs.get(argument.name))
        in_place = argument.alias_info is not None and argument.alias_info.is_write
        only_written = argument.is_out or "copy_" in schema.name
        moved.append(2 * size if in_place and not only_written else size)
    return moved


def _size(value: Any) -> int:
    return sum(leaf.numel() for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


@dataclass
class Seen:
    """What steps of one kind took: the whole, and the passes in it."""

    whole: list[float] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    vectors: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)


class Profiled:
    """An optimizer that trains a network, or moves tensors whose gradients are there already."""

    def __init__(
        self, params: list[nn.Parameter], optimizer: Optimizer, loss: Callable[[], Tensor] | None
    ) -> None:
        self._params, self._optimizer, self._loss = params, optimizer, loss
        self._numbers = sum(param.numel() for param in params)
        self._traffic: Traffic | None = None
        self._passes, self._forwards = 0.0, 0
        self.seen: dict[bool, Seen] = {}

    def _closure(self, backward: bool) -> Tensor:
        assert self._loss is not None
        with self._outside():
            start = time.perf_counter()
            loss = self._loss()
            if backward:
                loss.backward()  # type: ignore[no-untyped-call]
            self._passes += time.perf_counter() - start
            self._forwards += not backward
        return loss

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """What is not the optimizer's."""
        if self._traffic is not None:
            self._traffic.is_paused = True
        yield
        if self._traffic is not None:
            self._traffic.is_paused = False

    def _step(self) -> tuple[bool, float]:
        self._passes, self._forwards = 0.0, 0
        start = time.perf_counter()
        if self._loss is None:
            self._optimizer.step()
        else:
            self._optimizer.step(self._closure)  # type: ignore[arg-type]
        taken = time.perf_counter() - start
        return getattr(self._optimizer, "last_search", None) is not None, taken

    def run(self, steps: int, settling: int = 0) -> None:
        """Take steps of each kind that is met: first to time them, then to look into them."""
        for _ in range(settling):
            self._step()
        for _ in range(MOST):
            searched, taken = self._step()
            seen = self.seen.setdefault(searched, Seen())
            seen.whole.append(taken)
            seen.passes.append(self._passes)
            seen.forwards.append(self._forwards)
            if all(len(one.whole) >= steps for one in self.seen.values()):
                break
        for _ in range(MOST):
            if all(len(one.vectors) >= steps // 4 for one in self.seen.values()):
                break
            with Traffic(self._numbers) as self._traffic:
                searched, _ = self._step()
            seen = self.seen.setdefault(searched, Seen())
            seen.vectors.append(self._traffic.seconds)
            seen.copies.append(self._traffic.numbers / self._numbers)
            seen.operations.append(self._traffic.operations)
            self._traffic = None


def floor_of(loss: Callable[[], Tensor], params: list[nn.Parameter]) -> tuple[float, float]:
    """The forward and backward passes, and the forward pass alone, in turns."""

    def both() -> None:
        for param in params:
            param.grad = None
        loss().backward()  # type: ignore[no-untyped-call]

    def forward() -> None:
        with torch.no_grad():
            loss()

    times: dict[Callable[[], None], list[float]] = {both: [], forward: []}
    for _ in range(10):
        for job, taken in times.items():
            job()
            for _ in range(STEPS // 5):
                start = time.perf_counter()
                job()
                taken.append(time.perf_counter() - start)
    return min(times[both]), min(times[forward])


def rows_of(name: str, profiled: Profiled, floor: tuple[float, float]) -> Iterator[list[str]]:
    """A line for each kind of step."""
    for searched, seen in sorted(profiled.seen.items()):
        forwards = statistics.mean(seen.forwards)
        whole, vectors = min(seen.whole), min(seen.vectors)
        passes = min(seen.passes)
        least = floor[0] + forwards * floor[1]
        shares = [least, passes - least, vectors, whole - passes - vectors]
        yield [
            f"{name}, {'searched' if searched else 'unsearched'}",
            f"{1e3 * whole:.2f}",
            f"{forwards:.1f}" if searched else "",
            f"{whole / least:.2f}" if least else "",
            *(f"{100 * share / whole:.0f} %" for share in shares),
            f"{statistics.median(seen.operations):.0f}",
            f"{statistics.median(seen.copies):.1f}",
        ]


def network_rows() -> Iterator[list[str]]:
    makes: dict[str, Callable[[Any], Optimizer]] = {
        "SGD": lambda params: torch.optim.SGD(params, 1e-5, momentum=0.9, nesterov=True),
        # A low ceiling: the network must stay where it is while it is timed.
        "CGQ": lambda params: CGQ(params, lr=1e-5, search_prob=0.5),
        "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-5),
        "LineSearch(AdamW)": lambda params: LineSearch(
            torch.optim.AdamW(params), max_relative_step=1e-5, search_prob=0.5
        ),
    }
    for name, make in makes.items():
        torch.manual_seed(0)
        model = mlp()
        inputs, targets = torch.randn(64, 784), torch.randint(0, 10, (64,))
        params = list(model.parameters())

        def loss(model: nn.Module = model, x: Tensor = inputs, y: Tensor = targets) -> Tensor:
            return cross_entropy(model(x), y)

        optimizer = make(params)
        if isinstance(optimizer, (CGQ, LineSearch)):
            profiled = Profiled(params, optimizer, loss)
            profiled.run(STEPS, SETTLING)
        else:
            profiled = Bare(params, optimizer, loss)
            profiled.run(STEPS)
        yield from rows_of(f"MLP, {name}", profiled, floor_of(loss, params))


class Bare(Profiled):
    """An optimizer of torch's, whose closure zeroes the gradients too."""

    def _closure(self, backward: bool = True) -> Tensor:
        for param in self._params:
            param.grad = None
        with torch.enable_grad():
            return super()._closure(True)


def tensor_rows() -> Iterator[list[str]]:
    makes: dict[str, Callable[[Any], Optimizer]] = {
        "SGD": lambda params: torch.optim.SGD(params, lr=1e-6, momentum=0.9, foreach=True),
        "CGQ": lambda params: CGQ(params, lr=1e-6),
        "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-6, foreach=True),
        "LineSearch(AdamW)": lambda params: LineSearch(
            torch.optim.AdamW(params, lr=1e-6, foreach=True), max_relative_step=1e-6
        ),
    }
    params = resnet50_parameters()
    for param in params:
        param.grad = 0.01 * torch.randn_like(param)
    for name, make in makes.items():
        profiled = Profiled(params, make(params), None)
        profiled.run(STEPS // 6, 2)
        yield from rows_of(f"ResNet-50's tensors, {name}", profiled, (0.0, 0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("network", "tensors"), help="one half of the table")
    only = parser.parse_args().only
    warnings.simplefilter("ignore")  # of ceilings that are low on purpose
    table = Table(
        "step", "ms", "probes", "÷ floor", "floor", "slower passes", "vectors", "Python",
        "operations", "copies moved",
    )  # fmt: skip
    for half, rows in (("network", network_rows), ("tensors", tensor_rows)):
        for row in rows() if only in (None, half) else ():
            table.add_row(*row)
    console = Console(width=120)
    console.print(table)
    console.print(
        "Floor to Python: shares of the step. Operations: on vectors. Copies moved: what those "
        "read and write, in copies of the parameters. "
        f"python benchmarks/profile_step.py: least times, cgq {cgq.__version__}, "
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"{torch.get_num_threads()} threads",
        highlight=False,
    )


if __name__ == "__main__":
    main()
