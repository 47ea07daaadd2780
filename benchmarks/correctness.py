"""Does an optimizer leave the rest of the program alone? One small program, many optimizers.

    pip install -r benchmarks/rivals.txt    # a rival left out is listed as "not installed"
    python benchmarks/correctness.py

Every cell is observed by running. Exits with 1 if one of ours misses a mark.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from contenders import CONTENDERS, Contender, Program, RecordedDropout
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

STEPS = 20


def batchnorm_updates(contender: Contender) -> str:
    program = Program(contender, dropout=True)
    for number in range(STEPS):
        program.step(number)
    assert program.norm.num_batches_tracked is not None
    return str(program.norm.num_batches_tracked.item())


def dropout_mask(contender: Contender) -> str:
    program = Program(contender, dropout=True)
    assert isinstance(program.dropout, RecordedDropout)
    by_step: list[list[Tensor]] = []
    for number in range(STEPS):
        program.dropout.masks.clear()
        program.step(number)
        by_step.append(list(program.dropout.masks))
    pairs = itertools.combinations(by_step, 2)
    fresh = not any(torch.equal(a[0], b[0]) for a, b in pairs)
    across = "fresh across" if fresh else "repeats across"
    if all(len(masks) == 1 for masks in by_step):
        return f"one pass, {across}"
    same = all(torch.equal(masks[0], mask) for masks in by_step for mask in masks)
    return f"{'same' if same else 'changes'} within, {across}"


def two_groups(contender: Contender) -> str:
    """Which of two groups move, and whether a search looks along one line through both.

    The second group has a tenth of the learning rate, where there is one.
    """
    lr = Program(contender).optimizer.param_groups[0].get("lr")
    smaller = {} if lr is None else {"lr": lr / 10.0}
    try:
        return _moves_of_groups(contender, smaller)
    except Exception as error:
        if not smaller:
            raise
        return f"{_moves_of_groups(contender, {})}; unequal lr: {type(error).__name__}"


def _moves_of_groups(contender: Contender, settings: dict[str, float]) -> str:
    def regroup(params: list[nn.Parameter]) -> list[dict[str, Any]]:
        return [{"params": params[:4]}, {"params": params[4:], **settings}]

    program = Program(contender, regroup=regroup, dtype=torch.float64)
    split = sum(param.numel() for param in program.params[:4])
    moved: set[str] = set()
    searched, one_line = False, True
    for number in range(5):
        program.step(number)
        whole = program.displacement()
        parts = {"first": whole[:split], "second": whole[split:]}
        moved |= {name for name, part in parts.items() if part.any()}
        away = [point - program.points[0] for point in program.points]
        searched |= any(move.any() for move in away[:-1])
        units = [move / move.norm() for move in away if move.any()]
        one_line &= all(abs(units[-1] @ unit).item() > 1.0 - 1e-9 for unit in units)
    if len(moved) < 2:
        return f"{moved.pop()} only" if moved else "neither"
    if not searched:
        return "both"
    return "both, one line" if one_line else "both, several lines"


def without_gradient(contender: Contender) -> str:
    """A parameter the loss does not use, among those it uses."""
    unused = nn.Parameter(torch.ones(3))

    def regroup(params: list[nn.Parameter]) -> list[nn.Parameter]:
        return [*params[:2], unused, *params[2:]]

    program = Program(contender, regroup=regroup)
    for number in range(3):
        program.step(number)
    if not torch.equal(unused, torch.ones(3)):
        return "moves it"
    return "ok" if program.displacement().any() else "moves nothing"


def resume(contender: Contender) -> str:
    """Whether a run that is saved and loaded half-way goes on as if nothing had happened."""
    whole = Program(contender)
    for number in range(STEPS):
        whole.step(number)
    first = Program(contender)
    for number in range(STEPS // 2):
        first.step(number)
    file = io.BytesIO()
    torch.save((first.model.state_dict(), first.optimizer.state_dict()), file)
    note = ""
    try:
        model, optimizer = _loaded(file, weights_only=True)
    except Exception:
        note = "; not weights_only"
        model, optimizer = _loaded(file, weights_only=False)
    second = Program(contender)
    second.model.load_state_dict(model)
    second.optimizer.load_state_dict(optimizer)
    for number in range(STEPS // 2, STEPS):
        second.step(number)
    exact = torch.equal(whole.position(), second.position())
    return f"{'exact' if exact else 'differs'}{note}"


def _loaded(file: io.BytesIO, *, weights_only: bool) -> Any:
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


def nan_batch(contender: Contender) -> str:
    """What a batch of NaN does to the parameters, who counts it, and how training goes on."""
    program = Program(contender)
    for number in range(5):
        program.step(number)
    position, buffers, skips = program.position(), program.buffers(), _skips(program)
    try:
        program.step(5, scale=math.nan)
    except Exception as error:
        return f"raises {type(error).__name__}"
    if program.position().isnan().any():
        return "parameters NaN"
    notes = ["unchanged" if torch.equal(program.position(), position) else "moved"]
    if not torch.equal(program.buffers(), buffers):
        notes.append("BatchNorm NaN" if program.buffers().isnan().any() else "BatchNorm moved")
    if _skips(program) == skips + 1:
        notes.append("counted")
    program.step(6)
    if not program.displacement().isfinite().all():
        notes.append("NaN one step later")
    elif not program.displacement().any():
        notes.append("stuck after it")
    return ", ".join(notes)


def _skips(program: Program) -> float:
    """The sum of all numbers in the first group whose name speaks of skipping."""
    group = program.optimizer.param_groups[0]
    return sum(value for name, value in _numbers(group) if "skip" in name)


def rate(contender: Contender) -> str:
    """Whether the rate that was applied can be read, and whether a scheduler changes the step."""
    shown = Program(contender).optimizer.param_groups[0].get("lr")
    hidden = "no lr" if shown is None else f"no: lr shows {shown}"
    names = _names_of_rate(contender)
    visible = f"yes: {names[0]}" if names else hidden
    try:
        acts = "acts" if _scheduler_acts(contender) else "idle"
    except Exception as error:
        acts = type(error).__name__
    return f"{visible}; scheduler {acts}"


def _names_of_rate(contender: Contender) -> list[str]:
    """The entries of the group that equal the rate of a first step, whatever the loss's scale.

    On its first step a method has no memory and goes along the gradient, or by the same amount in
    every coordinate: the rate is the length over the gradient's, or the size of a coordinate.
    """
    found: list[list[str]] = []
    for scale in (0.1, 1.0, 10.0):
        program = Program(contender, dtype=torch.float64)
        grads = torch.autograd.grad(program.loss(0, scale), program.params)
        program.norm.reset_running_stats()
        program.step(0, scale)
        moved = program.displacement()
        length = nn.utils.parameters_to_vector(grads).norm()
        rates = [(moved.norm() / length).item(), moved.abs().median().item()]
        numbers = _numbers(program.optimizer.param_groups[0])
        found.append(
            [n for n, x in numbers if any(math.isclose(x, r, rel_tol=1e-3) for r in rates)]
        )
    return [name for name in found[0] if all(name in names for names in found)]


def _scheduler_acts(contender: Contender) -> bool:
    """Whether steps are at least ten times shorter where a scheduler halves lr at each of them."""
    left_alone, scheduled = Program(contender), Program(contender)
    scheduler = StepLR(scheduled.optimizer, step_size=1, gamma=0.5)
    for number in range(12):
        left_alone.step(number)
        scheduled.step(number)
        if scheduled.optimizer.param_groups[0]["lr"] != scheduler.get_last_lr()[0]:
            return False  # the optimizer writes over it
        scheduler.step()
    shorter: Tensor = scheduled.displacement().norm() < 0.1 * left_alone.displacement().norm()
    return bool(shorter)


def _numbers(group: Any) -> Iterator[tuple[str, float]]:
    """What a user can read off a parameter group; of a list its first entry."""
    for name, entry in group.items():
        value = entry[0] if isinstance(entry, list) and entry else entry
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, value


CHECKS: dict[str, tuple[Callable[[Contender], str], str]] = {
    f"BatchNorm updates in {STEPS} steps": (batchnorm_updates, str(STEPS)),
    "dropout mask": (dropout_mask, "same within, fresh across"),
    "two groups": (two_groups, "both, one line"),
    "parameter without gradient": (without_gradient, "ok"),
    "resume": (resume, "exact"),
    "NaN batch": (nan_batch, "unchanged, counted"),
    "rate visible; scheduler": (rate, "yes: step_size; scheduler acts"),
}


def observed(check: Callable[[Contender], str], contender: Contender) -> str:
    """What the check finds, or the type of the exception the optimizer raises."""
    quiet = contextlib.redirect_stdout(io.StringIO())
    # One that raises may leave gradients switched off, for all that follow.
    with warnings.catch_warnings(), quiet, torch.enable_grad():
        warnings.simplefilter("ignore")  # rivals warn and print; here only what they do counts
        try:
            return check(contender)
        except Exception as error:
            return type(error).__name__


def main() -> int:
    from rich.console import Console
    from rich.table import Table

    torch.set_num_threads(1)
    table = Table("optimizer", *CHECKS, title="One small program, many optimizers", show_lines=True)
    missed = 0
    for contender in CONTENDERS:
        if contender.version is None:
            table.add_row(contender.name, *["not installed"] * len(CHECKS))
            continue
        cells = []
        for check, mark in CHECKS.values():
            cell = observed(check, contender)
            wrong = contender.ours and cell != mark
            missed += wrong
            cells.append(f"[red]{cell}, not {mark}[/]" if wrong else cell)
        table.add_row(f"{contender.name} ({contender.version})", *cells)
    table.add_section()
    table.add_row("ours must be", *[mark for _, mark in CHECKS.values()])
    table.caption = f"torch {torch.__version__}, Python {platform.python_version()}"
    console = Console()
    if not console.is_terminal:  # a file has room for the words
        console = Console(width=200)
    console.print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
