"""On a GPU: captured passes train bit for bit as ordinary ones, and the host hardly waits."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from waits import noted_waits

from cgq import CGQ
from cgqbench.experiments.cell import Cell
from cgqbench.methods import METHODS
from cgqbench.records.identity import record_path
from cgqbench.tasks.task import Task, TaskError
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.engines import ENGINES, Ended
from cgqbench.training.epoch import train_epoch
from cgqbench.training.feed import Feed
from cgqbench.training.graphs import Graphs
from cgqbench.training.learner import Learner
from cgqbench.training.runner import Conditions

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

CUDA = torch.device("cuda", 0)
CONVOLUTIONAL = [method for method in METHODS if method != "muon"]  # which is for linear layers


def small_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(8 * 3 * 3, 10),
    )


def task_of(model: Any = small_network, examples: int = 50 * 16) -> Task:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(examples, 3, 8, 8, generator=generator)
    targets = torch.randint(0, 10, (examples,), generator=generator)
    test = inputs[:32], targets[:32]
    return Task(model, (inputs, targets), test, channels_last=True)


def learner_of(
    method: str, *, graphs: bool, task: Task | None = None, fast: bool = False
) -> tuple[Learner, Task, Feed, Cell]:
    cell = Cell("compare", "images", "mlp", method, seed=0, epochs=1, batch_size=16)
    task = task or task_of()
    arithmetic = Arithmetic(CUDA, fast)
    arithmetic.set_up(1)
    feed = Feed(task, CUDA, cell.batch_size, cell.seed)
    return Learner(cell, task, feed, arithmetic, graphs=graphs), feed


def trained(method: str, **how: Any) -> tuple[dict[str, Tensor], Any]:
    learner, _ = learner_of(method, **how)
    row = train_epoch(learner, 1, lambda progress: None)
    return {name: value.cpu() for name, value in learner.model.state_dict().items()}, row


def installed(method: str) -> bool:
    try:
        learner_of(method, graphs=False)
    except ValueError as error:
        if "Install it" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize("examples", [50 * 16, 3 * 16 + 5])
@pytest.mark.parametrize("method", [*CONVOLUTIONAL, "cgq:max_relative_step=0.01,lr=none"])
def test_fifty_steps_are_bit_equal_with_and_without_graphs(method: str, examples: int) -> None:
    if not installed(method):
        pytest.skip("its library is not installed")
    plain, its_row = trained(method, graphs=False, task=task_of(examples=examples))
    replayed, row = trained(method, graphs=True, task=task_of(examples=examples))
    assert row == its_row
    for name, value in plain.items():
        assert torch.equal(replayed[name], value), name


@pytest.mark.parametrize(
    "model", [small_network, lambda: nn.Sequential(Counting(), small_network())]
)
def test_a_probe_sees_the_same_noise_and_leaves_no_trace(model: Any) -> None:
    learner, feed = learner_of("cgq", graphs=True, task=task_of(model))
    learner.model.train()
    masks = set()
    for inputs, targets in feed.epoch(1):
        closure: Any = learner.closure(inputs, targets)
        loss = closure.first_pass(None)
        after = {name: b.clone() for name, b in learner.model.named_buffers()}
        state = torch.cuda.get_rng_state()
        closure.prepare_probes()
        for _ in range(3):
            assert float(closure.probe(CUDA)) == float(loss)
        closure.end_probes()
        assert torch.equal(torch.cuda.get_rng_state(), state)
        for name, buffer in learner.model.named_buffers():
            assert torch.equal(buffer, after[name]), name
        masks.add(float(loss))
    assert len(masks) > 40


class Counting(nn.Module):
    """Has a buffer that every pass changes, and that changes the pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * (1 + 0.01 * self.count)


@pytest.mark.parametrize("search_prob", [0.0, 1.0])
def test_a_batch_that_is_not_finite_is_taken_back(search_prob: float) -> None:
    learner, feed = learner_of(f"cgq:search_prob={search_prob}", graphs=True)
    learner.model.train()
    batches = list(feed.epoch(1))
    for inputs, targets in batches[:3]:
        learner.optimizer.step(learner.closure(inputs, targets))
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    inputs, targets = batches[3]
    learner.optimizer.step(learner.closure(inputs * math.nan, targets))
    for name, value in learner.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert int(learner.optimizer.param_groups[0]["skipped"]) == 1


@pytest.mark.parametrize("method", ["cgq", "scgq", "scgq:max_relative_step=0.01,lr=none"])
def test_the_host_waits_once_for_a_search_and_never_without(method: str) -> None:
    learner, feed = learner_of(method, graphs=True)
    learner.model.train()
    batches = list(feed.epoch(1))
    for inputs, targets in batches[:2]:
        learner.optimizer.step(learner.closure(inputs, targets))
    once = searched = 0
    for inputs, targets in batches[2:]:
        closure = learner.closure(inputs, targets)
        with noted_waits() as waits:
            learner.optimizer.step(closure)
        search = learner.optimizer.last_search  # type: ignore[attr-defined]
        if search is None:
            assert waits == []
        else:
            searched += 1
            once += len(waits) == 1
            assert 1 <= len(waits) <= len(search.trial_steps)
    assert once >= 0.8 * searched > 0


class Waiting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum().item() > 0 else x


class Drawing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * random.random()


class Replacing(nn.Module):
    """Has a buffer that every pass replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return x - self.mean


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


@pytest.mark.parametrize(
    ("module", "words"), [(Replacing, "replaces a buffer"), (Doubling, "changes its inputs")]
)
def test_what_a_graph_would_repeat_wrongly_is_refused(module: Any, words: str) -> None:
    # Channels-last memory would make a copy for each pass, which the model may change.
    task = replace(task_of(lambda: nn.Sequential(module(), small_network())), channels_last=False)
    learner, feed = learner_of("sgd", graphs=True, task=task)
    inputs, targets = next(feed.epoch(1))
    with pytest.raises(TaskError, match=words):
        learner.closure(inputs, targets)


def test_draws_on_the_host_are_refused() -> None:
    task = task_of(lambda: nn.Sequential(Drawing(), small_network()))
    learner, feed = learner_of("sgd", graphs=True, task=task)
    inputs, targets = next(feed.epoch(1))
    with pytest.raises(TaskError, match=r"random numbers on the host \(python\).*--no-graphs"):
        learner.closure(inputs, targets)


def test_parameters_that_move_in_memory_are_refused() -> None:
    learner, feed = learner_of("sgd", graphs=True)
    inputs, targets = next(feed.epoch(1))
    learner.closure(inputs, targets)()
    for param in learner.model.parameters():
        param.data = param.data.clone()
    with pytest.raises(TaskError, match=r"new memory.*--no-graphs"):
        learner.closure(inputs, targets)()


def test_compiled_blocks_in_bf16_train_alike_with_and_without_graphs() -> None:
    from cgqbench.tasks.networks import network

    task = task_of(lambda: network("resnet20", (3, 8, 8), 10), 12 * 16)
    plain, its_row = trained("cgq", graphs=False, task=task, fast=True)
    replayed, row = trained("cgq", graphs=True, task=task, fast=True)
    assert row == its_row
    for name, value in plain.items():
        assert torch.equal(replayed[name], value), name


def test_graphs_serve_any_loop() -> None:
    torch.manual_seed(0)
    model = small_network().to(CUDA)
    graphs = Graphs(model, lambda x, y: nn.functional.cross_entropy(model(x), y))
    inputs = torch.randn(16, 3, 8, 8, device=CUDA)
    targets = torch.randint(0, 10, (16,), device=CUDA)
    optimizer = CGQ(model.parameters(), model=model)
    losses = [float(optimizer.step(graphs.closure(inputs, targets))) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


TASK = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                         nn.Dropout(0.2), nn.Linear(8 * 6 * 6, 10))

def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 3, 8, 8, generator=generator)
    y = torch.randint(0, 10, (4000,), generator=generator)
    return x, y, x[:500], y[:500]
"""


def test_a_run_is_the_same_alone_and_beside_others(tmp_path: Path) -> None:
    path = tmp_path / "images.py"
    path.write_text(TASK)
    cells = [
        Cell("compare", "images", "task", method, seed, 2, 64, True, str(path))
        for method in ("sgd", "cgq", "scgq")
        for seed in (0, 1)
    ]
    lines: dict[int, list[Any]] = {}
    for jobs in (1, 6):
        conditions = Conditions(tmp_path / str(jobs), "cuda")
        events = list(ENGINES["local"](cells, conditions, jobs))
        assert [e.news.error for e in events if isinstance(e.news, Ended)] == [None] * len(cells)
        lines[jobs] = [
            record_path(cell, conditions.records).read_text().splitlines() for cell in cells
        ]
    assert lines[1] == lines[6]


def test_what_cannot_be_captured_is_refused() -> None:
    task = task_of(lambda: nn.Sequential(Waiting(), small_network()))
    learner, feed = learner_of("sgd", graphs=True, task=task)
    inputs, targets = next(feed.epoch(1))
    stream = torch.cuda.current_stream()
    with pytest.raises(TaskError, match=r"(?s)cannot be captured.*--no-graphs"):
        learner.closure(inputs, targets)
    assert torch.cuda.current_stream() == stream
    assert torch.rand(3, device=CUDA).isfinite().all()  # who comes next can draw
