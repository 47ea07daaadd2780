"""Random programs: whatever options, shapes, closures and mishaps meet, the contract holds.

A failure prints a seed; `replay(seed)` runs that program again, and `program(seed)` shows it.
"""

from __future__ import annotations

import io
import math
import random
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pprint import pformat
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from wrapped_run import is_well

import cgq.rules.scalars
from cgq import (
    CGQ,
    dai_yuan,
    fletcher_reeves,
    hestenes_stiefel,
    least_squares,
    polak_ribiere,
    two_point,
)
from cgq.evaluation.environment import Environment

CHUNKS, PROGRAMS = 48, 50  # 2,400 programs; chunks are what pytest-xdist hands out

RULES = (polak_ribiere, fletcher_reeves, hestenes_stiefel, dai_yuan)
DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
)
SHAPES = ((), (0,), (1,), (3,), (2, 3), (2, 0), (2, 3, 2, 2))
GENERATORS = ("torch", "python", "numpy")
CLOSURES = ("loss", "backward", "classic", "given", "bare")
CALAMITIES = ("raises", "interrupted", "nan", "inf", "zero", "huge", "none")
# Each happens in every chunk, or the chunk did not test what it says it tests.
EVENTS = {*CLOSURES, *CALAMITIES, "searched", "unsearched", "raised", "skipped", "resumed"}

TERMS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "bowl": lambda x, at: (x - at) ** 2,
    "two valleys": lambda x, at: (x * x - at) ** 2,
    "bounded": lambda x, at: torch.tanh(x - at) ** 2,
    "bottomless": lambda x, at: x * at,
    "cliff": lambda x, at: torch.exp(3.0 * (x - at)) - x,
}


@dataclass(frozen=True)
class Leaf:
    """A parameter: where it lies in memory and which group it belongs to."""

    shape: tuple[int, ...]
    memory: str
    dtype: torch.dtype
    group: int
    seed: int

    def parameter(self) -> nn.Parameter:
        generator = torch.Generator().manual_seed(self.seed)
        wide = torch.complex128 if self.dtype.is_complex else torch.float64
        values = torch.randn(self.shape, dtype=wide, generator=generator).to(self.dtype)
        if self.memory == "channels_last":
            values = values.contiguous(memory_format=torch.channels_last)
        elif self.memory == "transposed":
            values = values.movedim(0, -1).contiguous().movedim(-1, 0)
        elif self.memory == "strided":
            values = torch.stack([values, 9.0 - values], dim=-1)[..., 0]
        return nn.Parameter(values)


@dataclass(frozen=True)
class Plan:
    """What one step is asked to go through; a calamity is keyed by the number of its call."""

    batch: int
    closure: str
    active: frozenset[int]
    calamities: dict[int, str]
    huge: float
    lr_factor: float
    zero_first: bool


@dataclass(frozen=True)
class Program:
    seed: int
    leaves: tuple[Leaf, ...]
    groups: tuple[dict[str, Any], ...]
    options: dict[str, Any]
    term: str
    draws: tuple[str, ...]
    loss_dtype: torch.dtype
    names_model: bool
    gathered: bool  # take the accelerator's path: flat buffers, decisions on the device
    plans: tuple[Plan, ...]
    resume_at: int
    all_is_well: bool  # so that the coin decides, also under a relative ceiling


def program(seed: int) -> Program:
    """Program number `seed`."""
    rng = random.Random(seed)
    number_of_groups = rng.randint(1, 3)
    leaves = tuple(_leaf(rng, number_of_groups) for _ in range(rng.randint(1, 4)))
    plans = tuple(_plan(rng, batch, len(leaves)) for batch in range(rng.randint(3, 8)))
    return Program(
        seed=seed,
        leaves=leaves,
        groups=tuple(_group(rng) for _ in range(number_of_groups)),
        options=_options(rng),
        term=rng.choice(list(TERMS)),
        draws=tuple(name for name in GENERATORS if rng.random() < 0.4),
        loss_dtype=rng.choice((torch.float64, torch.float64, torch.float32)),
        names_model=rng.random() < 0.5,
        gathered=rng.random() < 0.25,
        plans=plans,
        resume_at=rng.randrange(len(plans)),
        all_is_well=rng.random() < 0.5,
    )


def _leaf(rng: random.Random, number_of_groups: int) -> Leaf:
    shape = rng.choice(SHAPES)
    memories = ["plain"]
    if shape:
        memories.append("strided")
    if len(shape) > 1:
        memories.append("transposed")
    if len(shape) == 4:
        memories.append("channels_last")
    return Leaf(
        shape=shape,
        memory=rng.choice(memories),
        dtype=rng.choice(DTYPES),
        group=rng.randrange(number_of_groups),
        seed=rng.randrange(1 << 31),
    )


def _group(rng: random.Random) -> dict[str, Any]:
    group: dict[str, Any] = {}
    if rng.random() < 0.8:
        group["lr"] = rng.choice((0.0, 1e-28, 0.01, 0.1, 0.3, 1.0, 30.0, math.inf))
        if rng.random() < 0.2:
            shape = rng.choice(((), (1,)))
            group["lr"] = torch.full(shape, group["lr"], dtype=torch.float64)
    if rng.random() < 0.5:
        group["weight_decay"] = rng.choice((0.0, 1e-3, 0.5))
    return group


def _options(rng: random.Random) -> dict[str, Any]:
    choices: dict[str, tuple[Any, ...]] = {
        "lr": (0.3, 0.05, 1.0, 10.0),
        "max_relative_step": (1e-3, 0.1, 10.0),
        "momentum": (*RULES, 0.0, 0.5, 0.9, 2.0),
        "max_momentum": (0.0, 0.8, 1.0, math.inf),
        "nesterov": (True,),
        "weight_decay": (1e-2, 1.0),
        "decoupled_weight_decay": (True,),
        "fit": (least_squares, two_point),
        "max_fits": (1, 2, 4, 7),
        "probe": (1e-6, 0.05, 1.0, 1e3),
        "search_prob": (0.0, 0.3, 0.7),
        "smoothing": (0.5, 0.9),
        "seed": (1, 12345),
        "maximize": (True,),
    }
    return {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.35}


def _plan(rng: random.Random, batch: int, number_of_leaves: int) -> Plan:
    # At least one: a loss that reaches no parameter is an error, tested elsewhere.
    active = rng.sample(range(number_of_leaves), rng.randint(1, number_of_leaves))
    calamities = {}
    while rng.random() < 0.3:
        calamities[rng.choice((0, 0, 1, 2, 3))] = rng.choice(CALAMITIES)
    return Plan(
        batch=batch,
        closure=rng.choice(CLOSURES),
        active=frozenset(active),
        calamities=calamities,
        huge=rng.choice((1e4, 1e17, 1e30, 1e150)),
        lr_factor=rng.choice((1.0, 1.0, 0.5, 2.0)),
        zero_first=rng.random() < 0.3,
    )


class Net(nn.Module):
    """A loss over parameters of any kind, with noise and with buffers of every habit."""

    count: Tensor
    mean: Tensor
    latest: Tensor

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.leaves = [leaf.parameter() for leaf in program.leaves]
        for index, leaf in enumerate(self.leaves):
            self.register_parameter(f"leaf{index}", leaf)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("latest", torch.zeros(()))
        self.noises: list[float] = []

    def forward(self, plan: Plan, calamity: str | None) -> Tensor:
        noise = math.prod(map(draw, self.program.draws))
        self.noises.append(noise)
        term = TERMS[self.program.term]
        loss = torch.zeros((), dtype=torch.float64)
        for index in sorted(plan.active):
            x = self.leaves[index]
            x = (torch.view_as_real(x) if x.is_complex() else x).double()
            loss = loss + term(x, math.cos(plan.batch + index)).sum()
        sign = -1.0 if self.program.options.get("maximize") else 1.0
        loss = (loss * (sign * noise)).to(self.program.loss_dtype)
        if calamity in ("nan", "inf"):
            loss = loss + float(calamity)
        elif calamity == "zero":
            loss = loss * 0.0
        elif calamity == "huge":  # the gradient, not the value
            loss = loss + plan.huge * (loss - loss.detach())
        self.count += 1
        self.mean.mul_(0.9).add_(0.1 * loss.detach().float())
        self.latest = 0.5 * self.latest + noise  # a new tensor, as hand-written modules do
        return loss

    def gradients(self) -> list[Tensor | None]:
        return [None if leaf.grad is None else leaf.grad.clone() for leaf in self.leaves]


def draw(generator: str) -> float:
    """A number between 0.5 and 1.5."""
    if generator == "torch":
        return 0.5 + torch.rand(()).item()
    return 0.5 + (random.random() if generator == "python" else np.random.random())


class Scripted(Exception):  # noqa: N818 - a signal, not an error
    pass


class Step:
    """One step of a program: runs the closure as planned and notes what happened in it."""

    def __init__(self, net: Net, optimizer: CGQ, plan: Plan) -> None:
        self.net, self.optimizer, self.plan = net, optimizer, plan
        self.calls = 0
        self.calamities: list[str | None] = []  # of the calls made, in their order
        self.losses: list[float | None] = []
        self.grads: list[Tensor | None] = [None] * len(net.leaves)
        self.after_first_pass: Any = None
        self.to_raise: BaseException | None = None
        self.raised: BaseException | None = None
        self.returned: Any = None

    def prepare(self) -> None:
        """What the caller does before step(): the schedule, for some closures the backward pass."""
        kind, plan = self.plan.closure, self.plan
        for group in self.optimizer.param_groups:
            group["lr"] *= plan.lr_factor
        if kind in ("given", "bare"):
            self.optimizer.zero_grad()
            first = plan.calamities.get(0)
            if kind == "given" and first in ("nan", "inf"):
                first = None  # the closure will say so itself
            loss = self.net(plan, first)
            loss.backward()
            self.grads = self.net.gradients()
        elif plan.zero_first or plan.calamities.get(0) == "none":
            self.optimizer.zero_grad()

        self.net.noises.clear()

    def take(self) -> None:
        closures: dict[str, Callable[..., Any]] = {
            "loss": self._loss_only,
            "backward": self._backward_if_asked,
            "classic": self._classic,
            "given": self._given,
        }
        kind = self.plan.closure
        with expected_warnings():
            try:
                self.returned = self.optimizer.step(*filter(None, [closures.get(kind)]))
            except (Scripted, KeyboardInterrupt, RuntimeError) as error:
                self.raised = error

    def _loss_only(self) -> Tensor | None:
        loss = self._pass()
        if self.calls == 1 and loss is not None:
            wanted = [self.net.leaves[index] for index in sorted(self.plan.active)]
            found = iter(torch.autograd.grad(loss, wanted, retain_graph=True))
            for index in sorted(self.plan.active):
                self.grads[index] = next(found).clone()
        return loss

    def _backward_if_asked(self, backward: bool) -> Tensor | None:
        assert backward == (self.calls == 0)
        assert backward or not torch.is_grad_enabled(), "a probe paid for a graph"
        return self._pass(backward=backward)

    def _classic(self) -> Tensor | None:
        return self._pass(backward=True)

    def _given(self) -> Tensor | None:
        with torch.no_grad():
            return self._pass()

    def _pass(self, *, backward: bool = False) -> Tensor | None:
        first = self.calls == 0
        calamity = self.plan.calamities.get(self.calls)
        self.calls += 1
        self.calamities.append(calamity)
        loss = self.net(self.plan, calamity)
        if calamity in ("raises", "interrupted"):
            for generator in GENERATORS:  # also those that no pass has drawn from so far
                draw(generator)
            self.to_raise = Scripted() if calamity == "raises" else KeyboardInterrupt()
            self.losses.append(math.nan)
            raise self.to_raise
        if backward:
            self.optimizer.zero_grad()
            loss.backward()
            if first:
                self.grads = self.net.gradients()
        if first:
            self.after_first_pass = surroundings(self.net)
        lost = None if first else math.nan
        self.losses.append(lost if calamity == "none" else loss.item())
        return None if calamity == "none" else loss


def frozen(value: Any) -> Any:
    """The value in a form that compares bit for bit and does not change."""
    if isinstance(value, Tensor):
        # A fresh copy: one element counts as contiguous whatever its stride.
        flat = value.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
        return str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return tuple((key, frozen(entry)) for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(frozen, value))
    return repr(value)  # tells -0.0 from 0.0, and a float from an int


def surroundings(net: Net) -> Any:
    """Everything a pass touches besides parameters and gradients."""
    return {
        "buffers": frozen((net.count, net.mean, net.latest)),
        "python": random.getstate(),
        "torch": frozen(torch.get_rng_state()),
        "numpy": frozen(np.random.get_state()),
    }


class Snapshot:
    """Net, optimizer and generators at one moment."""

    def __init__(self, net: Net, optimizer: CGQ) -> None:
        self.params = frozen(list(net.leaves))
        self.values = [wide(leaf) for leaf in net.leaves]
        self.directions, self.residuals = (
            [
                wide(optimizer.state[leaf][name])
                if name in optimizer.state.get(leaf, {})
                else torch.zeros_like(value)
                for leaf, value in zip(net.leaves, self.values, strict=True)
            ]
            for name in ("direction", "residual")
        )
        saved = optimizer.state_dict()
        self.memory = frozen(saved["state"])
        self.groups = frozen(
            [{k: v for k, v in group.items() if k != "skipped"} for group in saved["param_groups"]]
        )
        self.skipped = [int(group["skipped"]) for group in optimizer.param_groups]
        self.steps = optimizer.param_groups[0]["steps"]
        self.surroundings = surroundings(net)

    def memories(self) -> list[Tensor]:
        return [*self.directions, *self.residuals]


def wide(tensor: Tensor) -> Tensor:
    """A copy in double precision, complex numbers as pairs."""
    tensor = tensor.detach()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double().clone()


def check_step(program: Program, net: Net, optimizer: CGQ, plan: Plan, seen: Counter[str]) -> None:
    """Take one step and hold it against the contract."""
    step = Step(net, optimizer, plan)
    step.prepare()
    before = Snapshot(net, optimizer)
    step.take()
    after = Snapshot(net, optimizer)
    raised, search = step.raised, optimizer.last_search
    seen.update([plan.closure, *filter(None, step.calamities)])

    assert len(set(net.noises)) <= 1, "a probe saw other noise than the first pass"
    assert step.calls <= 2 + optimizer.options.max_fits, "too many evaluations"
    rejected = [probe in ("raises", "none") for probe in step.calamities[1:]]
    if isinstance(step.to_raise, KeyboardInterrupt) or step.calamities[:1] == ["raises"]:
        assert raised is step.to_raise, "what the closure raised did not reach the caller"
    elif program.gathered and raised is None and search is None:
        pass  # what was measured ahead was no part of a search
    elif rejected and all(rejected):
        assert isinstance(raised, (RuntimeError, Scripted)), "no trial was left, and nobody said so"
    else:
        assert raised is None, "raised, though a trial was left"

    if raised is not None:
        seen["raised"] += 1
        assert_untouched(before, after)
        assert after.skipped == before.skipped, "a failed step was counted as skipped"
        if step.calls > 1:
            assert frozen(net.gradients()) == frozen(step.grads), "a probe changed .grad"
        return
    probes = step.calls - 1
    if program.gathered and search is None:  # begun before the host saw that there is no way down
        assert probes <= 2
    else:
        assert probes == (search.evaluations if search else 0) or plan.closure == "bare", (
            "measured twice at one point"
        )
    assert frozen(net.gradients()) == frozen(step.grads), "a probe changed .grad"
    loss = step.losses[0] if step.losses else None
    if plan.closure != "bare":
        assert (step.returned is None) == (loss is None)
        assert loss is None or frozen(step.returned.item()) == frozen(loss)
    if after.skipped != before.skipped:
        seen["skipped"] += 1
        assert after.skipped == [count + 1 for count in before.skipped]
        assert is_reason_to_skip(step, before, optimizer), "skipped without need"
        if program.gathered and after.steps > before.steps:
            # The host has not looked: it can neither rewind generators nor hold back counts, and
            # a parameter met for the first time is remembered with zeros.
            assert after.params == before.params, "a skipped step moved parameters"
            for new, old in zip(after.memories(), before.memories(), strict=True):
                assert torch.equal(new, old), "a skipped step changed what is remembered"
            there = after.surroundings["buffers"]
            assert there == before.surroundings["buffers"], "a skipped step changed buffers"
        else:
            assert_untouched(before, after)
        return
    assert loss is None or math.isfinite(loss), "a loss that is not finite was not skipped"
    assert all(bool(value.isfinite().all()) for value in after.values), "parameters not finite"
    assert all(bool(p.isfinite().all()) for p in after.directions), "direction not finite"
    expected = before.surroundings if plan.closure == "bare" else step.after_first_pass
    assert after.surroundings == expected, "buffers or generators differ from one ordinary pass"
    if all(grad is None for grad in step.grads):
        assert (after.params, after.memory) == (before.params, before.memory)
        assert after.groups == before.groups
        return
    seen["searched" if search else "unsearched"] += 1
    assert_moved_along_line(step, before, after, optimizer)


@contextmanager
def expected_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        for known in (
            "This closure runs backward",
            "A trial of the line search raised",
            "The closure returned no loss and left no gradient",
            "The closure gave another loss",  # where a calamity meets it at the start
            "The gradients that backward\\(\\) put into .grad",  # for a step that raised
        ):
            warnings.filterwarnings("ignore", known, UserWarning)
        yield


def assert_untouched(before: Snapshot, after: Snapshot) -> None:
    assert after.params == before.params, "parameters changed"
    assert after.memory == before.memory, "what is remembered changed"
    assert after.groups == before.groups, "numbers in the groups changed"
    for name, value in before.surroundings.items():
        assert after.surroundings[name] == value, f"{name} changed"


def is_reason_to_skip(step: Step, before: Snapshot, optimizer: CGQ) -> bool:
    """Loss, gradient or every trial not finite, or products of the gradient out of range."""
    if step.losses and step.losses[0] is not None and not math.isfinite(step.losses[0]):
        return True
    search = optimizer.last_search
    if search is not None:
        sign = -1.0 if optimizer.options.maximize else 1.0
        # After the trials the start may have been measured once more.
        trials = zip(search.trial_losses, step.losses[1:], strict=not search.unused)
        assert all(frozen(mine) == frozen(theirs) for mine, theirs in trials)
        finite = filter(math.isfinite, search.trial_losses)
        return not any(sign * value < sign * search.loss for value in finite)
    if math.inf in (optimizer.options.max_momentum, *(g["lr"] for g in optimizer.param_groups)):
        return True  # with a step of any length the result may be out of range
    present = [grad for grad in step.grads if grad is not None]
    sizes = [wide(grad).abs().max().item() for grad in present if grad.numel()]
    remembered = [*before.values, *before.directions]  # θ: weight decay adds it to the gradient
    sizes += [x.abs().max().item() for x in remembered if x.numel()]
    narrow = any(grad.dtype not in (torch.float64, torch.complex128) for grad in present)
    return not all(size < (1e15 if narrow else 1e140) for size in sizes)


def assert_moved_along_line(step: Step, before: Snapshot, after: Snapshot, optimizer: CGQ) -> None:
    """p = r + βp' and θ = (1 - α·decoupled)·θ' + α·d, with the numbers the groups show."""
    options = optimizer.options
    sign = -1.0 if options.maximize else 1.0
    line = Sums()
    for index, leaf in enumerate(step.net.leaves):
        group = optimizer.param_groups[step.net.program.leaves[index].group]
        alpha, beta, lr = (float(group[name]) for name in ("step_size", "beta", "lr"))
        assert 0.0 <= alpha <= lr * (1.0 + 2.0**-52), "the step passed its ceiling"
        grad, old, previous = step.grads[index], before.values[index], before.directions[index]
        new, p = after.values[index], after.directions[index]
        if grad is None:
            assert torch.equal(new, old), "a parameter without gradient moved"
            assert torch.equal(p, previous)
            continue
        decay = group["weight_decay"]
        coupled, decoupled = (0.0, decay) if options.decoupled_weight_decay else (decay, 0.0)
        slope = sign * wide(grad)
        r = -(slope + coupled * old)
        d = r + beta * (r + beta * previous) if options.nesterov else r + beta * previous
        eps = torch.finfo(leaf.dtype).eps
        tiny = torch.finfo(leaf.dtype).tiny
        size = slope.abs() + coupled * old.abs() + beta * previous.abs()
        error = (p - (r + beta * previous)).abs()
        assert bool((error <= 8 * (eps * size + tiny)).all()), "p is not r + βp'"
        error = (new - ((1.0 - alpha * decoupled) * old + alpha * d)).abs()
        reach = (1.0 + alpha * decoupled) * old.abs() + alpha * (2.0 + beta) * size
        assert bool((error <= 16 * (eps * reach + tiny)).all()), "θ is not θ' + αd"
        move = d - decoupled * old
        # Sums are made in float32 at least, of vectors in the parameters' precision; where weight
        # decay outweighs the gradient, what is left of their difference is checked elsewhere.
        rounding = max(1e-5, 4 * eps) * (slope.abs() + coupled * old.abs())
        sums = slope * move, rounding * ((2.0 + beta) * size + decoupled * old.abs())
        line.add(lr, *sums, (alpha * d) ** 2, old**2)
    if optimizer.last_search is not None:
        slope, rounding = line.slope(max(float(group["lr"]) for group in optimizer.param_groups))
        error = abs(sign * optimizer.last_search.slope - slope)
        assert error <= rounding or not math.isfinite(rounding), "not the slope of the line"
    rho, (moved, theta) = options.max_relative_step, line.lengths()
    if rho is not None and theta > 0.0 and math.isfinite(theta):
        # Lengths are those of rounded vectors; what underflows is no length to keep to.
        assert moved <= 1.02 * rho * theta or moved < 1e-15, "the step passed ρ·|θ|"


class Sums:
    """Inner products along the line, collected parameter by parameter."""

    def __init__(self) -> None:
        self._parts: list[tuple[float, float, float]] = []
        self._moved = self._theta = 0.0

    def add(self, lr: float, slope: Tensor, rounding: Tensor, moved: Tensor, theta: Tensor) -> None:
        self._parts.append((lr, slope.sum().item(), rounding.sum().item()))
        self._moved += moved.sum().item()
        self._theta += theta.sum().item()

    def slope(self, ceiling: float) -> tuple[float, float]:
        """φ'(0), and how far off rounding may leave it."""
        ratios = [1.0 if lr == ceiling else lr / ceiling for lr, _, _ in self._parts]
        parts = list(zip(ratios, self._parts, strict=True))
        return sum(r * part[1] for r, part in parts), sum(r * part[2] for r, part in parts)

    def lengths(self) -> tuple[float, float]:
        """|α·d| and |θ|, of the parameters with a gradient."""
        return math.sqrt(self._moved), math.sqrt(self._theta)


def built(program: Program) -> tuple[Net, CGQ]:
    net = Net(program)
    groups: list[dict[str, Any]] = [{"params": [], **group} for group in program.groups]
    for leaf, param in zip(program.leaves, net.leaves, strict=True):
        groups[leaf.group]["params"].append(param)
    for group in groups:
        if isinstance(group.get("lr"), Tensor):
            group["lr"] = group["lr"].clone()
    model = net if program.names_model else None
    optimizer = CGQ(groups, **program.options, model=model)
    if program.all_is_well:
        is_well(optimizer)
    return net, optimizer


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def replay(seed: int) -> Counter[str]:
    """Run program number `seed`, whole and resumed, and count what happened."""
    given, seen = program(seed), Counter[str]()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        if given.gathered:
            patch.setattr(cgq.rules.scalars, "is_host", lambda device: False)
        net, optimizer = built(given)
        for number, plan in enumerate(given.plans):
            if number == given.resume_at:
                checkpoint = saved_and_loaded(
                    {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                )
                generators = random.getstate(), np.random.get_state(), torch.get_rng_state()
            check_step(given, net, optimizer, plan, seen)

        random.setstate(generators[0])
        np.random.set_state(generators[1])
        torch.set_rng_state(generators[2])
        resumed, other = built(given)
        resumed.load_state_dict(checkpoint["net"])
        other.load_state_dict(checkpoint["optimizer"])
        for plan in given.plans[given.resume_at :]:
            step = Step(resumed, other, plan)
            step.prepare()
            step.take()
        seen["resumed"] += 1
        whole, again = Snapshot(net, optimizer), Snapshot(resumed, other)
        for part in ("params", "memory", "groups", "skipped"):
            message = f"the resumed run ended with other {part}"
            assert getattr(again, part) == getattr(whole, part), message
        state = optimizer.state_dict()
        assert frozen(saved_and_loaded(state)) == frozen(state)
    return seen


@pytest.fixture(autouse=True)
def _generators_left_alone() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer looks once for compiled modules among all objects: here, thousands of times."""
    monkeypatch.setattr(Environment, "look_for_compiled", lambda self, params: None)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_programs_keep_the_contract(chunk: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(chunk * PROGRAMS, (chunk + 1) * PROGRAMS):
        try:
            seen += replay(seed)
        except BaseException:  # an interrupt that escaped is a failure too
            pytest.fail(
                f"replay({seed}) failed:\n{traceback.format_exc()}\n"
                f"{pformat(program(seed), width=100)}",
                pytrace=False,
            )
    assert seen.keys() >= EVENTS, f"never happened in this chunk: {EVENTS - seen.keys()}"


# The smallest programs behind what random ones have found.


def test_no_point_is_measured_twice() -> None:
    # The ceiling lies beyond a cliff, and a tenth of it is the first trial again.
    param = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    points: list[float] = []

    def loss() -> Tensor:
        points.append(param.item())
        return (1.0 - param + 0.01 * param**2).sum() + (math.inf if param.item() > 0.9 else 0.0)

    CGQ([param], lr=1.0).step(loss)
    assert len(points) > 2
    assert len(set(points)) == len(points)


def test_generator_drawn_from_by_a_failing_probe_alone_is_rewound() -> None:
    param = nn.Parameter(torch.ones(2))
    calls: list[int] = []

    def loss() -> Tensor:
        calls.append(1)
        if len(calls) >= 2:
            random.random()
            raise Scripted
        return param.square().sum()

    before = random.getstate()
    with pytest.raises(Scripted):
        CGQ([param]).step(loss)
    assert random.getstate() == before


def test_numpy_may_be_first_used_in_a_closure(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where there is a GPU, its generator comes after NumPy's, which appears during the step.
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.Generator(),))
    monkeypatch.delitem(sys.modules, "numpy.random")
    param = nn.Parameter(torch.ones(2))

    def loss() -> Tensor:
        sys.modules["numpy.random"] = np.random
        return param.square().sum() * (1.0 + np.random.random())

    start = param.detach().clone()
    CGQ([param]).step(loss)
    assert not torch.equal(param, start)


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize(
    ("dtype", "gradient", "lr", "momentum"),
    [
        (torch.float32, 1e19, 1e20, 0.0),
        (torch.bfloat16, 1e19, 1e20, 0.0),
        (torch.float16, 6e4, 10.0, 0.0),
        (torch.float16, 3e4, 1e-4, 0.9),  # here only the direction grows out of range
    ],
)
def test_no_step_leaves_the_range_of_the_dtype(
    dtype: torch.dtype,
    gradient: float,
    lr: float,
    momentum: float,
    gathered: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cgq.rules.scalars, "is_host", lambda device: not gathered)
    param = nn.Parameter(torch.ones(2, dtype=dtype))
    optimizer = CGQ([param], lr=lr, probe=lr, momentum=momentum)
    for _ in range(6):
        param.grad = torch.full_like(param, gradient)
        optimizer.step()
        assert bool(param.isfinite().all())
    # Nor does it end the training.
    start = param.detach().clone()
    param.grad = torch.full_like(param, -gradient / 2)
    optimizer.step()
    assert bool(param.isfinite().all())
    assert momentum == 0.0 or not torch.equal(param, start)


def test_smoothing_does_not_leave_the_range_of_the_dtype() -> None:
    # The step found is short enough; its average with an older, longer one is not.
    param = nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = CGQ([param], lr=8.0, probe=4.0, smoothing=0.9)
    optimizer.step(lambda: 0.05 * (param.double() - 2.0).square().sum() + 1.0)
    assert optimizer.param_groups[0]["step_size"] > 4.0
    optimizer.step(lambda: 5e4 * param.double().sum())
    assert bool(param.isfinite().all())


def test_unbounded_momentum_does_not_leave_the_range_of_the_dtype() -> None:
    params = [nn.Parameter(torch.ones(2, dtype=d)) for d in (torch.float32, torch.float64)]
    optimizer = CGQ(params, momentum=fletcher_reeves, max_momentum=math.inf)
    for gradient in (1e-10, 1e10):  # β = 1e40 is no float32
        for param in params:
            param.grad = torch.full_like(param, gradient)
        optimizer.step()
    assert all(bool(param.isfinite().all()) for param in params)


def test_slope_is_zero_where_the_gradient_is_though_weights_decay() -> None:
    # The decay is no part of the searched loss: on a plateau there is nothing to search.
    generator = torch.Generator().manual_seed(0)
    for size in range(1, 30):
        theta = torch.randn(size, dtype=torch.float64, generator=generator)
        param = nn.Parameter(theta.clone())
        optimizer = CGQ([param], weight_decay=0.3)
        optimizer.step(lambda x=param: (0.0 * x).sum() + 1.0)
        assert optimizer.last_search is None
        alpha = optimizer.param_groups[0]["step_size"]
        torch.testing.assert_close(param.detach(), (1.0 - 0.3 * alpha) * theta)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_slope_does_not_drown_in_weight_decay(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    theta = (1e3 * torch.randn(500, generator=generator)).to(dtype)
    gradient = torch.randn(500, generator=generator).to(dtype)
    param = nn.Parameter(theta.clone())
    optimizer = CGQ([param], weight_decay=1.0)
    optimizer.step(lambda: (param * gradient).double().sum() + 1e6)
    terms = gradient.double() * (gradient.double() + theta.double())
    assert optimizer.last_search is not None
    error = abs(optimizer.last_search.slope + terms.sum().item())
    assert error <= torch.finfo(dtype).eps * terms.abs().sum().item()
