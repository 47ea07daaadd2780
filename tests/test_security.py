"""A file from somebody else runs no code: not a checkpoint, not a data set, not a record."""

from __future__ import annotations

import ast
import gzip
import json
import pickle
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import official_files
import pytest
import torch
from browser import started, window
from hostile import MARKUP, SCRIPT, Trap, pickled
from made_records import landscape, training, write
from pages import ROOT
from rich.console import Console

from cgq import CGQ
from cgqbench.experiments.cell import Cell
from cgqbench.output.outcome import write_outcome
from cgqbench.records.checkpoint import Checkpoint
from cgqbench.records.identity import record_path
from cgqbench.records.record import RecordError
from cgqbench.tasks.data.dataset import DamagedData
from cgqbench.tasks.data.loading import dataset
from cgqbench.training.runner import Conditions, run_cell

DOWNLOADED = ("fashion_mnist", "svhn", "cifar10", "cifar100")

RUNS_CODE = {
    *("eval", "exec", "os.system", "os.popen", "yaml.load", "joblib.load", "shelve.open"),
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads"),
    *("pd.read_pickle", "pandas.read_pickle", "torch.hub.load", "torch.jit.load"),
}
EXCEPTIONS = {
    # It saves the state of rivals that cannot be loaded otherwise, and loads what it just saved.
    ROOT / "benchmarks" / "correctness.py",
    # It compiles kernels whose text it makes itself, of fixed forms and of numbers by their bits.
    ROOT / "src" / "cgq" / "vectors" / "formula.py",
    # It is asked to train the networks of a checkout, so it runs their definitions.
    ROOT / "benchmarks" / "strangers.py",
}


def unsafe_calls(code: str) -> list[str]:
    """Calls that would run code hidden in a file or a text."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {each.arg: ast.unparse(each.value) for each in node.keywords}
        unsafe = (
            name in RUNS_CODE
            or (name.split(".")[-2:] == ["torch", "load"] and given.get("weights_only") != "True")
            or (name in ("np.load", "numpy.load") and given.get("allow_pickle", "False") != "False")
            or name.endswith(".extractall")
            or given.get("shell", "False") != "False"
        )
        if unsafe:
            found.append(f"{name} in line {node.lineno}")
    return found


def test_the_source_never_runs_what_it_reads() -> None:
    folders = ("src", "examples", "benchmarks", "tools", "docs")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 80
    found = {str(path): unsafe_calls(path.read_text()) for path in files if path not in EXCEPTIONS}
    assert {path: calls for path, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "torch.load(file, weights_only=flag)",
        "pickle.loads(text)",
        "np.load(file, allow_pickle=True)",
        "eval(text)",
        "tar.extractall(folder)",
        "subprocess.run(command, shell=True)",
    ],
)
def test_unsafe_calls_are_noticed(code: str) -> None:
    assert len(unsafe_calls(code)) == 1
    assert unsafe_calls("torch.load(f, weights_only=True); pickle.dumps(x); model.eval()") == []


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickled(tmp_path / "trace"))
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize("name", DOWNLOADED)
def test_data_sets_are_not_unpickled(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    official_files.write(name, tmp_path)
    for path in filter(Path.is_file, list(tmp_path.rglob("*"))):
        content = pickled(trace)
        if path.suffix == ".gz":
            content = gzip.compress(content)
        elif path.suffix == ".bin":  # as long as the file that it stands for
            content = content.ljust(path.stat().st_size, b".")
        path.write_bytes(content)
    with pytest.raises(DamagedData):
        dataset(official_files.small(name), tmp_path)
    assert not trace.exists()


def test_a_checkpoint_of_a_run_is_not_unpickled(tmp_path: Path) -> None:
    task = str(Path(__file__).with_name("small_task.py"))
    cell = Cell("test", "small", "task", "cgq", 0, 2, 32, task=task)
    path = record_path(cell, tmp_path)

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        run_cell(cell, Conditions(tmp_path), killed)
    trace = tmp_path / "trace"
    Checkpoint(path.with_suffix(".ckpt")).save({"row": Trap(trace)}, 1)
    with pytest.raises(RecordError, match=r"no whole.*numbers cannot be read.*Remove .*jsonl"):
        run_cell(cell, Conditions(tmp_path, resume=True))
    assert not trace.exists()


def test_the_optimizer_s_state_is_numbers_and_plain_containers(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = CGQ(model.parameters(), search_prob=0.5, smoothing=0.5)
    for _ in range(3):
        optimizer.step(lambda: model(torch.ones(2, 3)).square().mean())
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    with torch.serialization.safe_globals([]):
        state = torch.load(tmp_path / "state.pt", weights_only=True)
    CGQ(model.parameters()).load_state_dict(state)
    numbers = [value for group in state["param_groups"] for value in group.values()]
    assert {type(value) for value in numbers} == {float, int, list}


class Elements(HTMLParser):
    """Every element of a page, with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def hostile(value: Any) -> Any:
    """The same with every text in it, but those that the program must know, made hostile."""
    if isinstance(value, dict):
        known = ("kind", "experiment", "status")
        return {key: each if key in known else hostile(each) for key, each in value.items()}
    return f"{value}{SCRIPT}{MARKUP}" if isinstance(value, str) else value


@pytest.fixture
def report(tmp_path: Path) -> Path:
    folder = tmp_path / "records"
    write(folder, training(0, 2, 0.3, 97.0), times=[1.0, 1.0], settings={"lr": 0.3, MARKUP: SCRIPT})
    write(folder, training(0, 2, 0.3, 97.0), experiment="own", task="a.py", network="own")
    landscape(folder, 3)
    for path in folder.rglob("*.jsonl"):
        lines = [hostile(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_outcome(folder, tmp_path / "out", Console(quiet=True))
    return tmp_path / "out" / "report.html"


def test_the_report_shows_hostile_records_as_text(report: Path, tmp_path: Path) -> None:
    elements = Elements()
    elements.feed(report.read_text(encoding="utf-8"))
    assert [tag for tag, _ in elements.found].count("script") == 2
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    assert not any(tag == "img" and each.get("src") == "x" for tag, each in elements.found)
    table = (report.parent / "table.md").read_text()
    assert "&lt;script" in table
    assert "<script" not in table
    assert "<img" not in table
    with started(tmp_path / "browser") as driver:
        window(driver, 1100)
        driver.get(report.as_uri())
        assert driver.title == "Optimizers side by side"
        assert "document.title='run'" in driver.find_element("tag name", "main").text
        assert driver.find_elements("css selector", "img[src=x], svg[onload]") == []
        assert driver.get_log("browser") == []
