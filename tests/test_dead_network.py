"""A network that stays dead ends its run; one that lives, or may come back, does not."""

import io
from contextlib import suppress
from pathlib import Path
from textwrap import indent

import pytest
import torch
from rectified_task import data, model
from rich.console import Console
from torch import nn

from cgqbench.analysis.chance import dead
from cgqbench.cli.progress import Board
from cgqbench.experiments.cell import Cell
from cgqbench.records.identity import record_path
from cgqbench.records.reading import Run, read_run
from cgqbench.records.record import Record
from cgqbench.training import dead_network, runner
from cgqbench.training.dead_network import nothing_goes_through, trained_weights
from cgqbench.training.deadline import Deadline
from cgqbench.training.engines import Started
from cgqbench.training.runner import Conditions, run_cell

TASK = str(Path(__file__).with_name("rectified_task.py"))
EPOCHS = 6
KILLED = "sgd:lr=300.0,momentum=0.0"


@pytest.fixture(autouse=True)
def seeded():
    """A small network may be dark by chance."""
    torch.manual_seed(1)


@pytest.fixture(autouse=True)
def one_dead_epoch_is_enough(monkeypatch):
    """As of an image set; the task here has 230 examples."""
    monkeypatch.setattr(runner, "ENOUGH", 230)


def cell_of(method: str, task: str = TASK) -> Cell:
    return Cell("test", "rectified", "task", method, 0, EPOCHS, 32, task=task)


def run_of(method: str, folder: Path, task: str = TASK) -> Run:
    run_cell(cell_of(method, task), Conditions(folder, resume=True))
    run = read_run(record_path(cell_of(method, task), folder))
    assert run is not None
    return run


def first_weights_by_epoch(monkeypatch) -> list[torch.Tensor]:
    seen = []

    def spied(learner, epoch, tell, train=runner.train_epoch):
        trained = train(learner, epoch, tell)
        seen.append(next(learner.model.parameters()).detach().clone())
        return trained

    monkeypatch.setattr(runner, "train_epoch", spied)
    return seen


def stopping_before_the_end(write):
    def append(record, line):
        if line["kind"] == "end":
            raise InterruptedError
        write(record, line)

    return append


def test_a_run_ends_with_its_network_and_says_why(tmp_path):
    run = run_of(KILLED, tmp_path)
    assert 1 <= len(run.epochs) < EPOCHS
    assert [row.get("dead", False) for row in run.epochs] == [False] * (len(run.epochs) - 1) + [
        True
    ]
    assert run.end["status"] == "diverged"
    assert f"dead in epoch {len(run.epochs)}" in run.end["reason"]
    assert run.diverged
    assert dead(run)
    assert not record_path(cell_of(KILLED), tmp_path).with_suffix(".ckpt").exists()


def test_later_epochs_would_not_have_brought_it_back(tmp_path, monkeypatch):
    ended = run_of(KILLED, tmp_path / "ended")
    died = len(ended.epochs)
    weights = first_weights_by_epoch(monkeypatch)
    monkeypatch.setattr(runner, "dead_since", lambda before, learner: False)
    whole = run_of(KILLED, tmp_path / "whole")
    assert whole.epochs[: died - 1] == ended.epochs[:-1]
    assert {**whole.epochs[died - 1], "dead": True} == ended.epochs[-1]
    assert len(whole.epochs) == EPOCHS
    assert all(torch.equal(later, weights[died - 1]) for later in weights[died:])
    *_, targets = data()
    of_one_class = {100 * (targets == label).sum().item() / len(targets) for label in range(3)}
    assert {row["test_accuracy"] for row in whole.epochs[died - 1 :]} <= of_one_class


def in_pieces(cell: Cell, folder: Path) -> int:
    """Stop a run after each epoch and go on; how often it was stopped."""

    def tell(news):
        if isinstance(news, dict) and news["kind"] == "epoch":
            raise InterruptedError

    for stops in range(EPOCHS + 1):
        with suppress(InterruptedError):
            run_cell(cell, Conditions(folder, resume=True), tell)
            return stops
    pytest.fail("it never ended")


def test_it_must_have_been_dead_for_long_enough(tmp_path, monkeypatch):
    """The epochs before count too where a run goes on."""
    (first, *_) = (row["epoch"] for row in run_of(KILLED, tmp_path / "one").epochs if "dead" in row)
    monkeypatch.setattr(runner, "ENOUGH", 2 * 256 + 1)
    whole = run_of(KILLED, tmp_path / "three")
    assert [row["epoch"] for row in whole.epochs if "dead" in row] == [first, first + 1, first + 2]
    assert f"dead from epoch {first} to epoch {first + 2}:" in whole.end["reason"]
    assert in_pieces(cell_of(KILLED), tmp_path / "pieces") == first + 2
    paths = [record_path(cell_of(KILLED), tmp_path / name) for name in ("three", "pieces")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    monkeypatch.setattr(runner, "ENOUGH", dead_network.ENOUGH)
    assert run_of(KILLED, tmp_path / "never").end["status"] == "finished"


@pytest.mark.parametrize(
    "method",
    [
        f"{KILLED},weight_decay=0.001",  # moves the first weights, which may bring it back
        "sgd:lr=1e-30,momentum=0.0",  # moves nothing, but answers differ
        "sgd:lr=0.1",
    ],
)
def test_what_lives_or_may_come_back_goes_on(method, tmp_path):
    run = run_of(method, tmp_path)
    assert len(run.epochs) == EPOCHS
    assert not any("dead" in row for row in run.epochs)
    assert run.end["status"] == "finished"


def test_killed_before_its_last_line_it_ends_the_same(tmp_path, monkeypatch):
    run_of(KILLED, tmp_path / "whole")
    whole = record_path(cell_of(KILLED), tmp_path / "whole").read_bytes()

    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(Record, "append", stopping_before_the_end(Record.append))
        run_of(KILLED, tmp_path / "killed")
    # What is missing takes no time, so that no deadline is too soon.
    late = Conditions(tmp_path / "killed", resume=True, deadline=Deadline.after(-1.0))
    assert run_cell(cell_of(KILLED), late)
    assert record_path(cell_of(KILLED), tmp_path / "killed").read_bytes() == whole


class Model(nn.Module):
    """Answers by a function of the inputs and of its first parameter, which is one number."""

    def __init__(self, answer):
        super().__init__()
        self.first = nn.Parameter(torch.tensor(0.5))
        self.answer = answer

    def forward(self, inputs):
        return self.answer(inputs, self.first)


def dark(x, w):
    """A rectifier that no input lights."""
    return torch.relu(w * x.sigmoid() - 9.0) + torch.ones(3)


@pytest.mark.parametrize(
    ("answer", "inputs", "dead"),
    [
        (dark, 4, True),
        (lambda x, w: dark(x, w) + 1e-7 * x.sign(), 4, True),  # rounding
        (lambda x, w: dark(x, w) + 1e-7 * x, 4, False),  # a plateau: little comes through
        (lambda x, w: dark(x, w) + 1e-7 * w, 4, False),
        (lambda x, w: dark(x, w) + w * torch.tensor([1.0, -1.0, 0.0]), 4, False),  # in sum none
        (lambda x, w: dark(x, w) + len(x), 4, False),  # one answer in each batch, not in all
        (lambda x, w: dark(x, w).softmax(-1) * x.sign(), 4, False),
        (lambda x, w: torch.ones_like(x) * w, 4, False),  # which finds the mean of the targets
        (lambda x, w: 0 * x * w + 1e-30 * x.sign(), 4, False),  # near nothing, yet different
        (lambda x, w: dark(x, w) * torch.nan, 4, False),
        (lambda x, w: 0 * x + 1, 4, False),  # its first weights are not used
        (lambda x, w: (dark(x, w), x), 4, False),  # several tensors: who knows
        (lambda x, w: dark(x, w).sum(), 4, False),
        (lambda x, w: dark(x, w).T, 4, False),  # a column for each input
        (lambda x, w: dark(x, w).sum(0, keepdim=True), 4, False),
        (dark, 1, False),  # one input shows nothing
        (dark, 0, False),
    ],
)
def test_nothing_goes_through_a_dead_network_alone(answer, inputs, dead):
    sizes = {4: [2, 1, 1], 1: [1], 0: []}[inputs]
    batches = [(torch.randn(size, 3), torch.zeros(size)) for size in sizes]
    model = Model(answer)
    assert nothing_goes_through(model, batches) is dead
    assert model.first.grad is None
    assert not any(inputs.requires_grad for inputs, _ in batches)


def test_equal_inputs_are_no_sign_of_death():
    same = [(torch.ones(4, 6), torch.zeros(4))]
    assert not nothing_goes_through(model(), same)


WITHOUT_GRADIENT_BY_THE_INPUTS = """
    x = torch.from_numpy(x.numpy())
"""
REFUSING = """
    if x.requires_grad: raise TypeError("no gradient by the inputs")
"""
AN_ODD_NUMBER = """
    if len(x) == 4: raise ValueError("100 test inputs make a last batch of 4, in passes of 32")
"""
UNTRAINED = """
    return torch.ones(len(x), 3)
"""


@pytest.mark.parametrize(
    "fault", [WITHOUT_GRADIENT_BY_THE_INPUTS, REFUSING, AN_ODD_NUMBER, UNTRAINED]
)
@pytest.mark.parametrize("method", ["sgd:lr=1e-30,momentum=0.0", KILLED])
def test_no_error_of_the_check_ends_a_run(fault, method, tmp_path):
    task = tmp_path / "task.py"
    task.write_text(f"""
import sys
sys.path.insert(0, {str(Path(TASK).parent)!r})
import torch
from rectified_task import data, model as rectified

class Faulty(torch.nn.Sequential):
    def forward(self, x):
        if not self.training:
{indent(fault, "        ")}
        return super().forward(x)

def model():
    return Faulty(*rectified())
""")
    assert run_of(method, tmp_path, str(task)).end["status"] == "finished"


def other_task(folder: Path, before: str, answer: str) -> str:
    """The task with a module around its network."""
    path = folder / "task.py"
    path.write_text(f"""
import sys
sys.path.insert(0, {str(Path(TASK).parent)!r})
import torch
from torch import nn
from rectified_task import data, model as rectified

class Around(nn.Module):
    def __init__(self):
        super().__init__()
        {before}
        self.network = rectified()

    def forward(self, x):
        return {answer}

model = Around
""")
    return str(path)


TOKEN = "self.missing = nn.Parameter(torch.zeros(6))"
MASKED = "self.network(torch.where(x.isnan(), self.missing, x))"


def test_what_decays_is_not_dead_where_the_first_weights_cannot_move(tmp_path):
    """A token for missing values that are not there."""
    task = other_task(tmp_path, TOKEN, MASKED)
    run = run_of(f"{KILLED},weight_decay=0.001", tmp_path, task)
    assert run.end["status"] == "finished"
    assert run_of(KILLED, tmp_path / "still", task).end["status"] == "diverged"


def test_what_trains_beside_first_weights_that_do_not_is_not_dead(tmp_path):
    """In evaluation all answers are one, as with statistics that have not caught up yet."""
    answer = f"{MASKED} if self.training else self.network(x * 0.0) + 0.0 * self.missing.sum()"
    task = other_task(tmp_path, TOKEN, answer)
    run = run_of("sgd:lr=0.1", tmp_path, task)
    assert run.end["status"] == "finished"
    assert not any("dead" in row for row in run.epochs)


def test_steps_of_zero_do_not_kill_a_network_that_begins_with_one_answer(tmp_path):
    task = other_task(tmp_path, "pass", "self.network(x)")
    with Path(task).open("a") as file:
        file.write("""
def model():
    made = Around()
    nn.init.zeros_(made.network[-1].weight)
    nn.init.zeros_(made.network[-1].bias)
    return made
""")
    assert run_of("sgd:lr=0.0", tmp_path, task).end["status"] == "finished"


def test_without_a_bias_nothing_moves_in_a_dead_network():
    made = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
    batches = [(torch.rand(4, 3), torch.zeros(4))]
    assert not nothing_goes_through(made, batches, still=trained_weights(made))
    nn.init.constant_(made[0].weight, -1.0)
    assert nothing_goes_through(made, batches, still=trained_weights(made))


def test_only_the_last_epochs_in_a_row_count(tmp_path, monkeypatch):
    """A network that came back has been dead for less long."""
    monkeypatch.setattr(runner, "ENOUGH", 2 * 256 + 1)
    told = iter([True, True, False, True, True, False])
    monkeypatch.setattr(runner, "dead_since", lambda before, learner: next(told))
    assert run_of("sgd:lr=0.1", tmp_path).end["status"] == "finished"


def test_a_model_that_counts_its_passes_does_not_count_those_of_the_check(tmp_path, monkeypatch):
    counting = f"{TOKEN}; self.register_buffer('passes', torch.zeros(()))"
    answer = f"(self.passes.add_(1), {MASKED} + 1e-6 * self.passes)[1]"
    task = other_task(tmp_path, counting, answer)
    checked = run_of("sgd:lr=0.1", tmp_path / "checked", task)
    monkeypatch.setattr(runner, "dead_since", lambda before, learner: False)
    assert run_of("sgd:lr=0.1", tmp_path / "not", task).epochs == checked.epochs


def test_a_batch_of_the_check_is_no_larger_than_one_of_the_run(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        dead_network,
        "nothing_goes_through",
        lambda model, batches, *_: sizes.extend(len(inputs) for inputs, _ in batches),
    )
    run_of("sgd:lr=1e-30,momentum=0.0", tmp_path)
    assert max(sizes) == 32


def put_out(layer: nn.Linear) -> None:
    nn.init.constant_(layer.bias, -1e3)


def test_dropout_and_batch_norm_are_as_in_a_test_and_stay_as_they_were():
    made = nn.Sequential(
        *(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.ReLU()),
        *(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 2)),
    )
    put_out(made[2])
    batches = [(torch.randn(4, 3), torch.zeros(4)) for _ in range(2)]
    buffers = [buffer.clone() for buffer in made.buffers()]
    assert nothing_goes_through(made.eval(), batches)
    assert all(map(torch.equal, made.buffers(), buffers))


class Drawing(nn.Sequential):
    """Draws a number in every pass, in evaluation mode too."""

    def forward(self, inputs):
        return super().forward(inputs) + torch.rand(())


def test_what_a_model_draws_is_drawn_alike():
    made = Drawing(*model())
    put_out(made[0])
    batches = [(torch.randn(4, 6), torch.zeros(4)) for _ in range(2)]
    assert nothing_goes_through(made, batches)


def test_frozen_layers_are_not_the_first_weights():
    made = model()
    made[0].requires_grad_(False)
    assert trained_weights(made)[0] is made[2].weight
    batches = [(torch.rand(4, 6), torch.zeros(4))]
    assert not nothing_goes_through(made, batches)
    put_out(made[2])
    assert nothing_goes_through(made, batches)


def test_words_have_no_gradient_of_their_own():
    made = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    batches = [(torch.randint(5, (4, 3)), torch.zeros(4))]
    assert not nothing_goes_through(made, batches)
    put_out(made[1])
    assert nothing_goes_through(made, batches)


def test_the_reason_is_told(tmp_path):
    told = []
    run_cell(cell_of(KILLED), Conditions(tmp_path), told.append)
    assert told[-1]["status"] == "diverged"
    with Board(1, Console(file=(screen := io.StringIO()), width=200)) as board:
        board.show(cell_of(KILLED), Started())
        for news in told:
            board.show(cell_of(KILLED), news)
    last = screen.getvalue().splitlines()[-1]
    assert last == f"{cell_of(KILLED).name} ended: {told[-1]['reason']}"
