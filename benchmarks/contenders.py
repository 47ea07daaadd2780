"""The optimizers under comparison, one row each, and the small program that they train.

A rival is imported only when it is built.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from cgq import CGQ

Loss = Callable[[], Tensor]


@dataclass(frozen=True)
class Contender:
    """An optimizer: what to install, how to build it, and how its authors say to take a step."""

    name: str
    distribution: str
    build: Callable[[ParamsT], Optimizer]
    step: Callable[[Optimizer, Loss], object]
    ours: bool = False

    @property
    def version(self) -> str | None:
        """None if it is not installed."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return None


def loss_only(optimizer: Optimizer, loss: Loss) -> object:
    return optimizer.step(loss)  # type: ignore[arg-type]  # torch says the loss is a float


def ordinary(optimizer: Optimizer, loss: Loss) -> object:
    """The loop of every tutorial: no closure."""
    optimizer.zero_grad()
    loss().backward()  # type: ignore[no-untyped-call]
    return optimizer.step()


def classic_closure(optimizer: Optimizer, loss: Loss) -> object:
    return optimizer.step(_closure(optimizer, loss))


def torchzero_closure(optimizer: Optimizer, loss: Loss) -> object:
    closure = _closure(optimizer, loss)
    return optimizer.step(lambda backward=True: closure(backward))  # type: ignore[misc]


def salsa_closure(optimizer: Optimizer, loss: Loss) -> object:
    # Its documentation zeroes outside the closure: probes need the gradient that it holds.
    optimizer.zero_grad()
    closure = _closure(None, loss)
    return optimizer.step(closure=lambda backwards=False: closure(backwards))  # type: ignore[misc]


def gen(optimizer: Optimizer, loss: Loss) -> object:
    """The loop of its documentation, which takes the model and its batches apart.

    The rate is set in every step, not now and then, so that every check meets it.
    """
    optimizer.zero_grad()
    loss().backward()  # type: ignore[no-untyped-call]
    importlib.import_module("GeN").lr_parabola(
        _Network(optimizer, loss),
        optimizer,
        criterion=lambda outputs, targets: outputs,
        tr_iter=itertools.repeat((torch.empty(0), torch.empty(0))),
        device="cpu",
        task="image_cls",
    )
    return optimizer.step()


class _Network:
    """What GeN asks of a network, whose output is the loss itself."""

    def __init__(self, optimizer: Optimizer, loss: Loss) -> None:
        self._groups, self._loss = optimizer.param_groups, loss

    def parameters(self) -> Iterator[Tensor]:
        return (param for group in self._groups for param in group["params"])

    def __call__(self, inputs: Tensor) -> Tensor:
        return self._loss()


def _closure(optimizer: Optimizer | None, loss: Loss) -> Callable[..., Any]:
    def closure(backward: bool = True) -> Tensor:
        value = loss()
        if backward:
            if optimizer is not None:
                optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
        return value

    return closure


def imported(path: str, **settings: Any) -> Callable[[ParamsT], Optimizer]:
    """Builds the class at `module:Name`."""
    module, name = path.split(":")

    def build(params: ParamsT) -> Optimizer:
        optimizer: Optimizer = getattr(importlib.import_module(module), name)(params, **settings)
        return optimizer

    return build


def cgq(**settings: Any) -> Callable[[ParamsT], Optimizer]:
    return lambda params: CGQ(params, **settings)


def torchzero_cg(params: ParamsT) -> Optimizer:
    """Nonlinear conjugate gradients as its documentation composes them."""
    tz = importlib.import_module("torchzero")
    search = tz.m.StrongWolfe(c2=0.1, a_init="first-order")
    optimizer: Optimizer = tz.Optimizer(params, tz.m.PolakRibiere(), search)
    return optimizer


def torchzero_armijo(params: ParamsT) -> Optimizer:
    tz = importlib.import_module("torchzero")
    optimizer: Optimizer = tz.Optimizer(params, tz.m.Backtracking())
    return optimizer


def lbfgs(params: ParamsT) -> Optimizer:
    return torch.optim.LBFGS(params, max_iter=4, line_search_fn="strong_wolfe")


def mechanic(params: ParamsT) -> Optimizer:
    mechanize = importlib.import_module("mechanic_pytorch").mechanize
    optimizer: Optimizer = mechanize(torch.optim.AdamW)(params, lr=1.0)
    return optimizer


def schedule_free(params: ParamsT) -> Optimizer:
    optimizer = imported("schedulefree:AdamWScheduleFree")(params)
    optimizer.train()  # type: ignore[attr-defined]  # it refuses to step in its other mode
    return optimizer


CONTENDERS = (
    Contender("CGQ", "cgq", cgq(), loss_only, ours=True),
    Contender("sCGQ", "cgq", cgq(search_prob=0.1, smoothing=0.5), loss_only, ours=True),
    Contender("CGQ, relative", "cgq", cgq(max_relative_step=0.005), loss_only, ours=True),
    Contender("torch LBFGS", "torch", lbfgs, classic_closure),
    Contender("torch SGD", "torch", imported("torch.optim:SGD"), ordinary),
    Contender("torch AdamW", "torch", imported("torch.optim:AdamW"), ordinary),
    Contender("torchzero CG", "torchzero", torchzero_cg, torchzero_closure),
    Contender("torchzero Armijo", "torchzero", torchzero_armijo, torchzero_closure),
    Contender("SaLSa", "salsa-optimizer", imported("salsa.SaLSA:SaLSA"), salsa_closure),
    Contender("Schedule-Free", "schedulefree", schedule_free, ordinary),
    Contender("Prodigy", "prodigyopt", imported("prodigyopt:Prodigy"), ordinary),
    Contender("D-Adaptation", "dadaptation", imported("dadaptation:DAdaptAdam"), ordinary),
    # Its authors' advice for networks with BatchNorm.
    Contender("DoG", "dog-optimizer", imported("dog:DoG", reps_rel=1e-4), ordinary),
    Contender("Mechanic", "mechanic-pytorch", mechanic, ordinary),
    Contender("GeN, every step", "gen-optim", imported("torch.optim:AdamW", lr=1e-4), gen),
    Contender("MoMo", "momo-opt", imported("momo:Momo"), classic_closure),
    Contender("COCOB", "parameterfree", imported("parameterfree:COCOB"), ordinary),
)


class RecordedDropout(nn.Module):
    """Dropout that keeps the mask of every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        mask = nn.functional.dropout(torch.ones_like(inputs))
        self.masks.append(mask)
        return inputs * mask


class Program:
    """A small network, the batches it learns from, and the optimizer that trains it.

    `regroup` makes parameter groups of the network's parameters. `points` are the places where
    the last step evaluated the loss, and the one where it ended: a row each.
    """

    def __init__(
        self,
        contender: Contender,
        *,
        regroup: Callable[[list[nn.Parameter]], Any] = lambda params: params,
        dropout: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(0)
        self.dropout = RecordedDropout() if dropout else nn.Identity()
        self.norm = nn.BatchNorm1d(12)
        self.model = nn.Sequential(
            nn.Linear(6, 12), self.norm, nn.ReLU(), self.dropout, nn.Linear(12, 3)
        ).to(dtype)
        self.params = list(self.model.parameters())
        self.contender = contender
        self.optimizer = contender.build(regroup(self.params))
        self.points: list[Tensor] = []
        self._dtype = dtype

    def loss(self, number: int, scale: float = 1.0) -> Tensor:
        """The loss of batch `number`, which is always the same batch."""
        draw = torch.Generator().manual_seed(number)
        inputs = torch.randn(32, 6, generator=draw)
        labels = (inputs[:, :3] + 0.5 * torch.randn(32, 3, generator=draw)).argmax(1)
        self.points.append(self.position())
        outputs = self.model(scale * inputs.to(self._dtype))
        return scale * nn.functional.cross_entropy(outputs, labels)

    def step(self, number: int, scale: float = 1.0) -> None:
        """One step on batch `number`; a `scale` of NaN spoils inputs and loss."""
        self.points.clear()
        self.contender.step(self.optimizer, lambda: self.loss(number, scale))
        self.points.append(self.position())

    def position(self) -> Tensor:
        return nn.utils.parameters_to_vector([param.detach() for param in self.params])

    def buffers(self) -> Tensor:
        return torch.cat([buffer.double().flatten() for buffer in self.model.buffers()])

    def displacement(self) -> Tensor:
        """How far the last step has gone."""
        return self.points[-1] - self.points[0]
