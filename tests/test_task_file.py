"""Tasks of the user's own: read the same everywhere, known by their content, judged rightly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cgqbench.experiments.cell import Cell
from cgqbench.records.reading import runs
from cgqbench.records.record import RecordError
from cgqbench.tasks.task import TaskError, right_classes
from cgqbench.tasks.task_file import from_file, try_out
from cgqbench.training.evaluation import on_test_data
from cgqbench.training.feed import Feed
from cgqbench.training.runner import Conditions, run_cell

SMALL = Path(__file__).with_name("small_task.py")
MODEL = "import torch\nfrom torch import nn\ndef model(): return nn.Linear(3, 4)\n"
DATA = (
    "def data():\n"
    "    return torch.randn(9, 3), torch.arange(9) % 4, torch.randn(4, 3), torch.arange(4)\n"
)


def file_of(tmp_path: Path, text: str, name: str = "task.py") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def cell_of(path: Path, method: str = "sgd", epochs: int = 1) -> Cell:
    return Cell("test", path.stem, "task", method, 0, epochs, 4, task=str(path))


def test_what_data_draws_is_the_same_whoever_reads_it(tmp_path):
    text = MODEL + (
        "import numpy, random\n"
        "def data():\n"
        "    x = torch.tensor(numpy.random.randn(9, 3)).float() + random.random() + torch.rand(1)\n"
        "    return x, torch.arange(9) % 4, x, torch.arange(9) % 4\n"
    )
    path = file_of(tmp_path, text)
    first = from_file(path)
    torch.manual_seed(99)
    second = from_file(path)
    assert torch.equal(first.train[0], second.train[0])
    assert first.checksum == second.checksum


def test_an_edited_task_is_another_task(tmp_path):
    path = file_of(tmp_path, MODEL + DATA)
    run_cell(cell_of(path), Conditions(tmp_path / "out"))
    run_cell(cell_of(path), Conditions(tmp_path / "out"))
    path.write_text(MODEL + DATA + "# another comment\n")
    with pytest.raises(RecordError, match=r"checksum.*--restart"):
        run_cell(cell_of(path), Conditions(tmp_path / "out"))


def test_the_same_task_elsewhere_is_the_same_task(tmp_path):
    run_cell(cell_of(file_of(tmp_path, MODEL + DATA)), Conditions(tmp_path / "out"))
    (tmp_path / "moved").mkdir()
    moved = file_of(tmp_path / "moved", MODEL + DATA)
    run_cell(cell_of(moved), Conditions(tmp_path / "out"))
    assert len(runs(tmp_path / "out")) == 1


def test_a_task_may_import_its_neighbours_when_it_likes(tmp_path):
    file_of(tmp_path, "SIZE = 3\n", "neighbour_of_task.py")
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "import torch\nfrom torch import nn\n"
        "@dataclass\nclass Sizes:\n    inputs: int\n"
        "def model():\n    from neighbour_of_task import SIZE\n"
        "    return nn.Linear(Sizes(SIZE).inputs, 4)\n"
    )
    task = from_file(file_of(tmp_path, text + DATA))
    assert task.model().in_features == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def model(): pass", r"no function data\(\)"),
        ("def model(): pass\ndef data(): return 1, 2", "must return four tensors"),
        (
            "import torch\ndef model(): pass\n"
            "def data(): return torch.ones(3), torch.ones(2), torch.ones(1), torch.ones(1)",
            r"training inputs of shape \(3,\) and targets of shape \(2,\)",
        ),
        (
            "import torch\ndef model(): pass\ndef data(): return [torch.tensor(1.0)] * 4",
            r"shape \(\)",
        ),
        ("def model(): pass\ndef data(): return 'a', 'b', 'c', 'd'", "must return tensors"),
        ("def model(): pass\ndef data(): a, b = 1,", r"(?s)data\(\) in .*line 2"),
        ("this is no Python", "the import in .* failed"),
        ("import no_such_module", "(?s)the import in .*no_such_module"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_why(text, message, tmp_path):
    with pytest.raises(TaskError, match=message):
        from_file(file_of(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def model(): return nn.Linear(7, 4)\n", "(?s)first batch in .*mat1 and mat2"),
        ("def model(): return 1 / 0\n", r"(?s)model\(\) in .*division"),
        ("def model(): return nn.LazyLinear(4)\n", "lazy layers"),
        (
            "def loss(output, target): return (output - 1) ** 2\n",
            "must be one number that backward",
        ),
        ("def loss(output, target): return 1.0\n", "must be one number that backward"),
        ("def model(): return None\n", r"model\(\) in .* returned None. Return a torch.nn.Module"),
        ("def model(): raise SystemExit(3)\n", r"model\(\) in .* failed: 3"),
        (
            "def data():\n    return torch.randn(9, 3), torch.arange(9) % 4, torch.randn(4, 5), "
            "torch.arange(4)\n",
            "(?s)first test batch in .*mat1 and mat2",
        ),
        (
            "def data():\n    return torch.randn(9, 3), torch.arange(9) % 4, torch.randn(4, 3), "
            "torch.arange(4) + 9\n",
            "(?s)first test batch in .*out of bounds",
        ),
        (
            "def loss(output, target): return nn.functional.cross_entropy(output, target)\n"
            "def correct(output, target): return output.no_such\n",
            "(?s)first test batch in .*no_such",
        ),
    ],
)
def test_one_batch_is_tried_before_anything_is_trained(text, message, tmp_path):
    path = file_of(tmp_path, MODEL + DATA + text)
    with pytest.raises(TaskError, match=message):
        try_out(from_file(path), path, 4)


def test_accuracy_is_of_what_the_cross_entropy_judges():
    output = torch.zeros(2, 3, 5)  # two sequences of five, three classes
    output[:, 1] = 1.0
    target = torch.tensor([[1, 1, 0, -100, -100], [1, 2, 1, 1, -100]])
    right = right_classes(output, target)
    assert right.sum() == 5
    assert right.numel() == 7


def test_a_loss_of_ones_own_has_an_accuracy_only_if_the_file_says_which_answers_are_right(tmp_path):
    loss = "def loss(output, target): return nn.functional.cross_entropy(output, target)\n"
    silent = from_file(file_of(tmp_path, MODEL + DATA + loss))
    assert silent.correct is None
    correct = "def correct(output, target): return output.argmax(1) == target\n"
    telling = from_file(file_of(tmp_path, MODEL + DATA + loss + correct))
    feed = Feed(telling, torch.device("cpu"), 4, 0)
    model = telling.model()
    _, accuracy = on_test_data(model, telling, feed)
    inputs, targets = telling.test
    assert accuracy == 100 * (model(inputs).argmax(1) == targets).float().mean().item()
    assert on_test_data(model, silent, feed)[1] is None


def test_a_model_that_changes_its_inputs_is_refused(tmp_path):
    text = (
        MODEL
        + DATA
        + (
            "class Greedy(nn.Linear):\n"
            "    def forward(self, x): return super().forward(x.mul_(2))\n"
            "def model(): return Greedy(3, 4)\n"
        )
    )
    path = file_of(tmp_path, text)
    task = from_file(path)
    before = task.test[0].clone()
    with pytest.raises(TaskError, match="in place"):
        run_cell(cell_of(path), Conditions(tmp_path / "out"))
    on_test_data(task.model(), task, Feed(task, torch.device("cpu"), 4, 0))
    assert torch.equal(task.test[0], before)


def test_a_loss_that_changes_its_targets_is_refused(tmp_path):
    text = MODEL + (
        "def data():\n"
        "    return torch.randn(9, 3), torch.randn(9, 4), torch.randn(4, 3), torch.ones(4, 4)\n"
        "def loss(output, target): return (output - target.mul_(0.9)).square().mean()\n"
    )
    path = file_of(tmp_path, text)
    with pytest.raises(TaskError, match="in place"):
        run_cell(cell_of(path), Conditions(tmp_path / "out"))
    task = from_file(path)
    on_test_data(task.model(), task, Feed(task, torch.device("cpu"), 4, 0))
    assert torch.equal(task.test[1], torch.ones(4, 4))


def test_tensorboard_holds_every_epoch_once_after_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cell = cell_of(SMALL, epochs=3)
    board = tmp_path / "board"

    def stop(news):
        if isinstance(news, dict) and news["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, Conditions(tmp_path / "out", tensorboard=board), stop)
    run_cell(cell, Conditions(tmp_path / "out", resume=True, tensorboard=board))
    events = EventAccumulator(str(board / "test" / cell.name))
    events.Reload()
    assert [event.step for event in events.Scalars("train_loss")] == [1, 2, 3]


def test_a_long_name_is_shortened_and_stays_its_own():
    names = {Cell("test", "x" * 300, "task", method, 0, 1).name for method in ("sgd", "adam")}
    assert len(names) == 2
    assert all(len(name) < 200 for name in names)
