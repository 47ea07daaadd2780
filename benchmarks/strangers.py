"""PyTorch's own examples with CGQ, sCGQ and LineSearch put in, beside the optimizer they came with.

    python benchmarks/strangers.py CHECKOUT        # of github.com/pytorch/examples

Networks and loss functions are the checkout's: its files are read, and the classes and functions
they define are made, without running the rest. What is here is one short adapter an example: small
data (MNIST, two hundred kilobytes of the checkout's text, generated waves and graphs) and the batch
loss. Every optimizer starts from the same weights and sees the same batches. `loss` is the mean
over the last tenth of the steps, `passes` the forward passes a step. `messages` are counted, and
printed below the table. A crash is a run that raised.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import LBFGS, SGD, Adadelta, Adam, Optimizer
from where import measured_on

from cgq import CGQ, LineSearch
from cgqbench.tasks.data import load

STEPS = 200
SEED = 0
SKIPPED = {
    "dcgan": "two networks with opposite losses: see docs/when_not.md",
    "distributed": "several processes or GPUs; docs/distributed.md is about those",
    "fast_neural_style": "needs torchvision's trained VGG",
    "fx": "trains nothing",
    "imagenet": "needs torchvision",
    "language_translation": "needs torchtext and spacy",
    "mnist_forward_forward": "a loss and an optimizer for each layer",
    "mnist_hogwild": "processes that share the weights",
    "reinforcement_learning": "no loss that is an objective: see docs/when_not.md",
    "siamese_network": "needs torchvision's ResNet",
}

Batch = tuple[Any, ...]


class Example(NamedTuple):
    """An example as it is trained here."""

    model: nn.Module
    batches: Iterator[Batch]
    loss: Callable[..., Tensor]
    original: Callable[[Any], Optimizer]
    name: str
    clip: float | None = None
    steps: int = STEPS


def definitions(path: Path) -> dict[str, Any]:
    """The classes and functions of a file, which is not run otherwise."""
    names: dict[str, Any] = {"__name__": path.stem}
    for node in ast.parse(path.read_text(), str(path)).body:
        wanted = isinstance(node, (ast.ClassDef, ast.FunctionDef))
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", None) or node.names[0].name
            wanted = _is_there(module)
        if wanted:
            exec(compile(ast.Module([node], []), str(path), "exec"), names)
    return names


def _is_there(module: str) -> bool:
    try:
        return importlib.import_module(module) is not None
    except ImportError:
        return False


def shuffled(batch_size: int, *tensors: Tensor) -> Iterator[Batch]:
    """Batches of the same rows of each, for ever."""
    while True:
        for rows in torch.split(torch.randperm(len(tensors[0])), batch_size):
            if len(rows) == batch_size:
                yield tuple(tensor[rows] for tensor in tensors)


def digits(normalised: bool = True) -> tuple[Tensor, Tensor]:
    train = load("mnist").train
    images = train.images[:6000].float() / 255.0
    if normalised:
        images = (images - 0.1307) / 0.3081
    return images, train.labels[:6000].long()


def mnist(checkout: Path) -> Example:
    model = definitions(checkout / "mnist" / "main.py")["Net"]()
    return Example(
        model,
        shuffled(32, *digits()),
        lambda x, y: F.nll_loss(model(x), y),
        lambda params: Adadelta(params, lr=1.0),
        "Adadelta 1",
        steps=150,
    )


def mnist_rnn(checkout: Path) -> Example:
    model = definitions(checkout / "mnist_rnn" / "main.py")["Net"]()
    return Example(
        model,
        shuffled(64, *digits()),
        lambda x, y: F.nll_loss(model(x), y),
        lambda params: Adadelta(params, lr=0.1),
        "Adadelta 0.1",
    )


def vae(checkout: Path) -> Example:
    names = definitions(checkout / "vae" / "main.py")
    model, loss = names["VAE"](), names["loss_function"]

    def batch_loss(x: Tensor) -> Tensor:
        decoded, mean, log_variance = model(x)
        return torch.as_tensor(loss(decoded, x, mean, log_variance))

    batches = shuffled(128, digits(normalised=False)[0])
    return Example(model, batches, batch_loss, lambda params: Adam(params, lr=1e-3), "Adam 0.001")


def super_resolution(checkout: Path) -> Example:
    model = definitions(checkout / "super_resolution" / "model.py")["Net"](upscale_factor=2)
    images, _ = digits(normalised=False)
    return Example(
        model,
        shuffled(16, F.avg_pool2d(images, 2), images),
        lambda x, y: F.mse_loss(model(x), y),
        lambda params: Adam(params, lr=0.01),
        "Adam 0.01",
    )


def time_sequence_prediction(checkout: Path) -> Example:
    model = definitions(checkout / "time_sequence_prediction" / "train.py")["Sequence"]().double()
    start = torch.randint(-80, 80, (32, 1))
    waves = torch.sin((torch.arange(41) + start) / 5.0).double()
    inputs, targets = waves[:, :-1], waves[:, 1:]
    return Example(
        model,
        shuffled(len(waves), inputs, targets),
        lambda x, y: F.mse_loss(model(x), y),
        lambda params: LBFGS(params, lr=0.8),
        "LBFGS 0.8",
        steps=100,
    )


def regression(checkout: Path) -> Example:
    names = definitions(checkout / "regression" / "main.py")
    names["POLY_DEGREE"] = 4
    names["W_target"], names["b_target"] = torch.randn(4, 1) * 5, torch.randn(1) * 5
    model = nn.Linear(4, 1)

    def batches() -> Iterator[Batch]:
        while True:
            yield names["get_batch"]()

    return Example(
        model,
        batches(),
        lambda x, y: F.smooth_l1_loss(model(x), y),
        lambda params: SGD(params, lr=0.1),
        "SGD 0.1",
    )


def word_language_model(checkout: Path) -> Example:
    """Windows of the text; each begins with a hidden state of zeros, which it must not carry on."""
    folder = checkout / "word_language_model"
    text = (folder / "data" / "wikitext-2" / "valid.txt").read_text()[:200_000].split()
    number = {word: index for index, word in enumerate(dict.fromkeys(text))}
    tokens = torch.tensor([number[word] for word in text])
    windows = tokens[: len(tokens) // 21 * 21].view(-1, 21)
    model = definitions(folder / "model.py")["RNNModel"]("LSTM", len(number), 64, 64, 1, 0.0)

    def batch_loss(rows: Tensor) -> Tensor:
        words = rows.t()
        outputs, _ = model(words[:-1], model.init_hidden(rows.shape[0]))
        return F.nll_loss(outputs, words[1:].reshape(-1))

    return Example(
        model,
        shuffled(20, windows),
        batch_loss,
        lambda params: SGD(params, lr=20.0),
        "SGD 20, clipped",
        clip=0.25,
    )


def a_graph() -> tuple[Tensor, Tensor, Tensor]:
    """Five kinds of nodes that know mostly their own: features, neighbours and kinds."""
    kinds = torch.arange(400) % 5
    same = kinds[:, None] == kinds
    edges = (torch.rand(400, 400) < torch.where(same, 0.03, 0.003)).float()
    edges = ((edges + edges.t() + torch.eye(400)) > 0).float()
    features = F.one_hot(kinds, 50).float() + 1.5 * torch.randn(400, 50)
    return features, edges, kinds


def gcn(checkout: Path) -> Example:
    features, edges, kinds = a_graph()
    scale = edges.sum(1).rsqrt()
    model = definitions(checkout / "gcn" / "main.py")["GCN"](50, 16, 5)
    near = scale[:, None] * edges * scale
    return _on_graph(model, features, near, kinds, 0.01)


def gat(checkout: Path) -> Example:
    features, edges, kinds = a_graph()
    model = definitions(checkout / "gat" / "main.py")["GAT"](50, 16, 4, 5)
    return _on_graph(model, features, edges, kinds, 0.005)


def _on_graph(
    model: nn.Module, features: Tensor, neighbours: Tensor, kinds: Tensor, rate: float
) -> Example:
    known = torch.arange(100)

    def batches() -> Iterator[Batch]:
        while True:
            yield features, neighbours, kinds

    def loss(x: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        return F.nll_loss(model(x, edges)[known], labels[known])

    return Example(
        model,
        batches(),
        loss,
        lambda params: Adam(params, lr=rate, weight_decay=5e-4),
        f"Adam {rate:g}",
    )


EXAMPLES: dict[str, Callable[[Path], Example]] = {
    adapter.__name__: adapter
    for adapter in (
        mnist,
        mnist_rnn,
        vae,
        super_resolution,
        time_sequence_prediction,
        regression,
        word_language_model,
        gcn,
        gat,
    )
}


def around(example: Example, params: Any) -> LineSearch:
    """LineSearch around the example's optimizer; LBFGS searches by itself: Adam takes its place."""
    base = example.original(params)
    return LineSearch(Adam(params) if isinstance(base, LBFGS) else base)


OURS: dict[str, Callable[[Example, Any], Any]] = {
    "CGQ": lambda example, params: CGQ(params),
    "sCGQ": lambda example, params: CGQ(params, search_prob=0.1, smoothing=0.5),
    "LineSearch": around,
}


class Run(NamedTuple):
    """What came of a run."""

    loss: float
    passes: float
    seconds: float
    messages: Sequence[str]
    crash: str = ""


def run(adapter: Callable[[Path], Example], checkout: Path, method: str) -> tuple[str, Run]:
    """Train an example with a method; also what that is called."""
    torch.manual_seed(SEED)
    example = adapter(checkout)
    params = list(example.model.parameters())
    ours = OURS.get(method)
    optimizer: Any = example.original(params) if ours is None else ours(example, params)
    passes, losses, crash, began = [0], [], "", time.perf_counter()

    def loss_of(batch: Batch) -> Tensor:
        passes[0] += 1
        return example.loss(*batch)

    def classic(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if example.clip is not None:
            nn.utils.clip_grad_norm_(params, example.clip)
        return loss

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(example.steps):
            batch = next(example.batches)
            step = classic if ours is None else loss_of
            try:
                losses.append(torch.as_tensor(optimizer.step(partial(step, batch))).item())
            except Exception as error:
                crash = f"{type(error).__name__}: {error}"
                break
    few = losses[-max(1, example.steps // 10) :]
    loss = sum(few) / len(few) if few else float("nan")
    messages = [str(one.message) for one in told if one.filename == __file__]  # torch's have others
    done = Run(loss, passes[0] / max(1, len(losses)), time.perf_counter() - began, messages, crash)
    return example.name if ours is None else method, done


def main() -> None:
    parser = argparse.ArgumentParser(description="PyTorch's own examples, with CGQ put in.")
    parser.add_argument("checkout", type=Path, help="of github.com/pytorch/examples")
    parser.add_argument("--only", action="append", choices=EXAMPLES, help="this example")
    words = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=110)
    table = Table("example", "optimizer", "loss", "passes", "seconds", "messages", "crash")
    notes: dict[str, list[str]] = {}
    for name in words.only or EXAMPLES:
        for method in ("original", *OURS):
            label, done = run(EXAMPLES[name], words.checkout, method)
            numbers = f"{done.loss:.4g}", f"{done.passes:.2f}", f"{done.seconds:.1f}"
            told = str(len(done.messages) or "")
            table.add_row(name if method == "original" else "", label, *numbers, told, done.crash)
            for message in done.messages:
                notes.setdefault(message, []).append(f"{name}, {label}")
    console.print(table)
    for message, runs in notes.items():
        console.print(f"{'; '.join(runs)}: {message}", highlight=False)
    for name, reason in SKIPPED.items():
        console.print(f"not run: {name} ({reason})", highlight=False)
    console.print(
        f"At most {STEPS} steps, seed {SEED}, one thread; {measured_on(torch.device('cpu'))}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
