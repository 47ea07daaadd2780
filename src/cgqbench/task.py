"""What is trained: a model, its data and its loss; by name, or from a file of the user's own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from cgqbench.cell import Cell
from cgqbench.data import load
from cgqbench.data.images import cropped_and_flipped, normalised
from cgqbench.networks import network

Loss = Callable[[Tensor, Tensor], Tensor]


class TaskError(ValueError):
    """A task file that cannot be used; the message names the cure."""


@dataclass(frozen=True)
class Task:
    """A model, training and test data as whole tensors, and the loss between output and target."""

    model: Callable[[], nn.Module]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    loss: Loss = cross_entropy
    prepared: Callable[[Tensor], Tensor] = torch.as_tensor
    """From what the data hold to what the model takes: normalisation."""
    augmented: Callable[[Tensor, Generator], Tensor] | None = None
    """A random change of training inputs, before they are prepared."""


def task_of(cell: Cell) -> Task:
    """The task that a cell trains."""
    return from_file(Path(cell.task)) if cell.task else by_name(cell.dataset, cell.network)


def by_name(dataset: str, network_name: str) -> Task:
    """A data set of the paper with a network of the paper."""
    data = load(dataset)
    shape = data.train.images.shape[1:]
    return Task(
        partial(network, network_name, (shape[0], shape[1], shape[2]), data.classes),
        data.train,
        data.test,
        prepared=partial(normalised, mean=data.mean, std=data.std),
        augmented=cropped_and_flipped if data.augment else None,
    )


def from_file(path: Path) -> Task:
    """The task in a Python file with `model()`, `data()` and, if it likes, `loss(output, target)`.

    `data()` returns four tensors: training inputs and targets, test inputs and targets.
    """
    module = _imported(path)
    for name in ("model", "data"):
        if not callable(getattr(module, name, None)):
            raise TaskError(f"{path} has no function {name}(). Add it: see examples/my_task.py.")
    tensors = module.data()
    if not isinstance(tensors, (tuple, list)) or len(tensors) != 4:
        raise TaskError(
            f"data() in {path} must return four tensors: training inputs, training targets, "
            "test inputs, test targets."
        )
    x, y, test_x, test_y = (_tensor(tensor, path) for tensor in tensors)
    for inputs, targets, split in ((x, y, "training"), (test_x, test_y, "test")):
        if len(inputs) != len(targets) or not len(inputs):
            raise TaskError(
                f"data() in {path} returned {len(inputs)} {split} inputs and {len(targets)} "
                "targets. They must be as many, and not none."
            )
    return Task(module.model, (x, y), (test_x, test_y), getattr(module, "loss", cross_entropy))


def _tensor(value: Any, path: Path) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TaskError(f"data() in {path} must return tensors: {error}.") from None


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise TaskError(f"There is no task file {path}. Give the path of a Python file to --task.")
    spec = importlib.util.spec_from_file_location(f"cgq_task_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise TaskError(f"{path} is not a Python file. Give a file ending in .py to --task.")
    module = importlib.util.module_from_spec(spec)
    # So that a task may import the files next to it, as if it were run as a script.
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module
