"""A task from a Python file of the user's own."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parameter import is_lazy

from cgqbench.tasks.seeds import seed_everything
from cgqbench.tasks.task import Task, TaskError, right_classes


def from_file(path: Path) -> Task:
    """The task in a Python file with `model()`, `data()` and, if it likes, `loss(output, target)`.

    `data()` returns four tensors: training inputs and targets, test inputs and targets. Without a
    loss of its own the task is a classification by cross-entropy; with one it may say in
    `correct(output, target)` which answers are right.
    """
    # Every process that reads the file must see the same data, whatever they are drawn from.
    seed_everything(0)
    module = _imported(path)
    for name in ("model", "data"):
        if not callable(getattr(module, name, None)):
            raise TaskError(f"{path} has no function {name}(). Add it: see examples/my_task.py.")
    with _blaming(path, "data()"):
        tensors = module.data()
    if not isinstance(tensors, (tuple, list)) or len(tensors) != 4:
        raise TaskError(
            f"data() in {path} must return four tensors: training inputs, training targets, "
            "test inputs, test targets."
        )
    x, y, test_x, test_y = (_tensor(tensor, path) for tensor in tensors)
    for inputs, targets, split in ((x, y, "training"), (test_x, test_y, "test")):
        if not (inputs.dim() and targets.dim() and 0 < len(inputs) == len(targets)):
            raise TaskError(
                f"data() in {path} returned {split} inputs of shape {tuple(inputs.shape)} and "
                f"targets of shape {tuple(targets.shape)}. They must be as many, and not none."
            )
    classes = None if y.is_floating_point() or hasattr(module, "loss") else right_classes
    return Task(
        module.model,
        (x, y),
        (test_x, test_y),
        getattr(module, "loss", cross_entropy),
        getattr(module, "correct", classes),
        channels_last=getattr(module, "channels_last", False),
        checksum=_checksum(path, (x, y, test_x, test_y)),
    )


def try_out(task: Task, path: Path, batch_size: int) -> None:
    """Compute one batch, so that a mistake in the file is found before anything is trained."""
    inputs, targets = (tensor[:batch_size] for tensor in task.train)
    with _blaming(path, "model()"):
        model = task.model()
    if not isinstance(model, nn.Module):
        raise TaskError(f"model() in {path} returned {model!r}. Return a torch.nn.Module.")
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise TaskError(
            f"model() in {path} has lazy layers. Give their sizes: see torch.nn.Linear."
        )
    with _blaming(path, "the loss of the first batch"):
        loss = task.loss(model(task.prepared(inputs)), targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise TaskError(
                f"The loss of {path} must be one number that backward() can start from."
            )
    inputs, targets = (tensor[:batch_size].clone() for tensor in task.test)
    with _blaming(path, "the first test batch"), torch.no_grad():
        outputs = model.eval()(task.prepared(inputs))
        task.loss(outputs, targets)
        if task.correct is not None:
            task.correct(outputs, targets)


@contextmanager
def _blaming(path: Path, what: str) -> Iterator[None]:
    """Say of an error in the user's code where it happened."""
    try:
        yield
    except TaskError:
        raise
    except (Exception, SystemExit) as error:
        place = traceback.format_exc(limit=-4)
        raise TaskError(f"{what} in {path} failed: {error}\n{place}") from None


def _tensor(value: Any, path: Path) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TaskError(f"data() in {path} must return tensors: {error}.") from None


def _checksum(path: Path, tensors: tuple[Tensor, ...]) -> str:
    content = hashlib.sha256(path.read_bytes())
    for tensor in tensors:
        content.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()[:16]


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise TaskError(f"There is no task file {path}. Give the path of a Python file to --task.")
    spec = importlib.util.spec_from_file_location(f"cgq_task_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise TaskError(f"{path} is not a Python file. Give a file ending in .py to --task.")
    module = importlib.util.module_from_spec(spec)
    # As if it were run as a script: it finds the files next to it, and others find it.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    with _blaming(path, "the import"):
        spec.loader.exec_module(module)
    return module
