"""A network that is dead for good ends its run; one that lives, or may come back, does not."""

from pathlib import Path

import pytest
import torch
from rectified_task import data
from torch import nn

from cgqbench.analysis.chance import dead
from cgqbench.experiments.cell import Cell
from cgqbench.records.identity import record_path
from cgqbench.records.reading import Run, read_run
from cgqbench.records.record import Record
from cgqbench.training import runner
from cgqbench.training.dead_network import one_answer
from cgqbench.training.runner import Conditions, run_cell

TASK = str(Path(__file__).with_name("rectified_task.py"))
EPOCHS = 6
KILLED = "sgd:lr=300.0,momentum=0.0"


def cell_of(method: str) -> Cell:
    return Cell("test", "rectified", "task", method, 0, EPOCHS, 32, task=TASK)


def run_of(method: str, folder: Path) -> Run:
    run_cell(cell_of(method), Conditions(folder, resume=True))
    run = read_run(record_path(cell_of(method), folder))
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


def test_nothing_that_came_later_would_have_changed_it(tmp_path, monkeypatch):
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

    class Killed(BaseException):
        pass

    def append(record, line, write=Record.append):
        if line["kind"] == "end":
            raise Killed
        write(record, line)

    with monkeypatch.context() as patch:
        patch.setattr(Record, "append", append)
        with pytest.raises(Killed):
            run_of(KILLED, tmp_path / "killed")
    run_of(KILLED, tmp_path / "killed")
    assert record_path(cell_of(KILLED), tmp_path / "killed").read_bytes() == whole


class Answers(nn.Module):
    """Whatever it is asked, this."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, inputs):
        return self.answer(inputs)


@pytest.mark.parametrize(
    ("answer", "inputs", "alike"),
    [
        (lambda x: torch.ones(len(x), 3), 4, True),
        (lambda x: torch.ones(len(x), 3) * (1 + 1e-7 * x), 4, True),  # rounding
        (lambda x: torch.zeros(len(x), 3) + 1e-30 * x, 4, False),  # near nothing, yet different
        (lambda x: torch.full((len(x), 3), float("nan")), 4, False),
        (lambda x: (torch.ones(len(x)), x), 4, False),  # several tensors: who knows
        (lambda x: torch.tensor(1.0), 4, False),
        (lambda x: torch.ones(len(x), 3), 1, False),  # one input shows nothing
        (lambda x: torch.ones(len(x), 3), 0, False),
    ],
)
def test_one_answer_for_all(answer, inputs, alike):
    batches = [(torch.randn(1, 3), torch.zeros(1)) for _ in range(inputs)]
    model = Answers(answer)
    assert one_answer(model, batches) is alike
    assert model.training
