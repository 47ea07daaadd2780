"""The command: what it prints, what it writes, and what it says when something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cgq import __version__
from cgqbench.cli import app
from cgqbench.records.reading import runs

TASK = str(Path(__file__).with_name("small_task.py"))
QUICK = ["compare", "--task", TASK, "-m", "sgd", "-m", "scgq", "--epochs", "2"]


def cgq(*words: str):
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "120"})


def check_succeeded(result):
    assert result.exit_code == 0, result.output


def test_compare_trains_prints_the_table_and_says_where_to_look(tmp_path):
    result = cgq(*QUICK, "--out", str(tmp_path), "--tensorboard")
    check_succeeded(result)
    assert "SGD" in result.output
    assert "sCGQ(2pt)" in result.output
    assert "report.html" in result.output.strip().splitlines()[-1]
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert "SGD" in (tmp_path / "table.md").read_text()
    assert len(list((tmp_path / "plots").glob("*.png"))) >= 2
    assert {run.header["method"] for run in runs(tmp_path)} == {"sgd", "scgq"}
    assert all(run.end == {"kind": "end", "status": "finished"} for run in runs(tmp_path))
    assert len(list((tmp_path / "tensorboard").rglob("events*"))) == 2
    again = cgq(*QUICK, "--out", str(tmp_path))
    check_succeeded(again)
    assert "2 of 2 runs are finished already" in again.output
    restarted = cgq(*QUICK, "--out", str(tmp_path), "--restart")
    check_succeeded(restarted)
    assert "finished already" not in restarted.output


def test_the_version():
    result = cgq("--version")
    check_succeeded(result)
    assert result.output == f"cgq {__version__}\n"


def test_report_needs_records_alone(tmp_path):
    check_succeeded(cgq(*QUICK, "--out", str(tmp_path / "run")))
    result = cgq("report", str(tmp_path / "run"), "--out", str(tmp_path / "page"))
    check_succeeded(result)
    assert (tmp_path / "page" / "report.html").exists()
    assert (tmp_path / "page" / "table.md").exists()


def test_a_regression_has_a_loss_and_no_accuracy(tmp_path):
    example = Path(__file__).parents[1] / "examples" / "my_task.py"
    words = ["--task", str(example), "-m", "adam", "-m", "cgq", "--epochs", "1"]
    check_succeeded(cgq("compare", *words, "--out", str(tmp_path)))
    assert len(runs(tmp_path)) == 2
    for run in runs(tmp_path):
        assert run.epochs[0]["test_accuracy"] is None
        assert run.epochs[0]["test_loss"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "-m", "sdg"], "no method 'sdg'"),
        (["compare", "--network", "alexnet"], "mlp"),
        (["compare", "--dataset", "imagenet"], "mnist"),
        (["compare", "--task", "nowhere.py"], "no task file"),
        (["compare", "--device", "warp"], "--device cpu"),
        (["compare", "--engine", "slurm"], "Choose from: local, ray"),
        (["reproduce", "table9"], "Choose from: table1"),
        (["reproduce", "table1", "--only", "imagenet"], "has no 'imagenet'"),
        (["report", "nowhere"], "cgq compare"),
        (["landscape", "-m", "sgd", "--task", TASK], "Use cgq or scgq"),
        (["data", "get", "imagenet"], "mnist"),
        (["reproduce", "table1", "--only", "mnist", "--only", "vgg16"], "It has: mnist with mlp"),
        (["reproduce", "figure1", "--only", "mnist"], "cgq landscape"),
        (["compare", "--task", TASK, "-m", "cgq:lr=-1"], "Invalid learning rate"),
    ],
)
def test_an_error_names_its_cure_and_is_no_traceback(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = cgq(*words)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(
        Path(TASK).read_text() + "\ndef loss(output, target):\n"
        "    import traceback\n"
        "    if any('pal.py' in frame.filename for frame in traceback.extract_stack()):\n"
        "        raise ArithmeticError('not with PAL')\n"
        "    return torch.nn.functional.cross_entropy(output, target)\n"
    )
    words = ["compare", "--task", str(path), "-m", "pal", "-m", "sgd", "--epochs", "1"]
    result = cgq(*words, "--out", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "not with PAL" in result.output
    assert [run.header["method"] for run in runs(tmp_path / "out") if run.end] == ["sgd"]


def contents(out: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("words", [["-m", "adm"], ["-m", "adam:lr=foo"], ["-m", "cgq:max_fits=0"]])
def test_restart_discards_nothing_when_something_is_wrong(words, tmp_path):
    check_succeeded(cgq(*QUICK, "--out", str(tmp_path)))
    before = contents(tmp_path / "records")
    result = cgq(*QUICK, *words, "--restart", "--out", str(tmp_path))
    assert result.exit_code == 2
    after = contents(tmp_path / "records")
    assert {path: after[path] for path in before} == before


def test_a_method_named_twice_is_run_once(tmp_path):
    check_succeeded(cgq(*QUICK, "-m", "sgd", "--out", str(tmp_path)))
    assert len(runs(tmp_path)) == 2


def test_files_of_others_in_the_folder_do_no_harm(tmp_path):
    (tmp_path / "foreign.jsonl").write_text('{"some": "thing"}\n[1, 2]\n')
    check_succeeded(cgq(*QUICK, "--out", str(tmp_path)))
    check_succeeded(cgq("report", str(tmp_path)))


def test_a_damaged_record_is_named(tmp_path):
    check_succeeded(cgq(*QUICK, "--out", str(tmp_path)))
    path = runs(tmp_path)[0].path
    sound = path.read_bytes()
    half_a_header = b'{"kind": "cell", "dataset": "mnist"}'
    for line in (b"\xff\xfe", b"5", b'{"a": 1}', b'{"kind": "end"}', half_a_header):
        path.write_bytes(sound + line + b"\n")
        result = cgq("report", str(tmp_path))
        assert result.exit_code == 2, line
        assert path.name in result.output.replace("\n", "")
        assert "line 5" in result.output


def test_restart_and_resume_are_not_given_together(tmp_path):
    check_succeeded(cgq(*QUICK, "--out", str(tmp_path)))
    before = contents(tmp_path)
    result = cgq(*QUICK, "--out", str(tmp_path), "--restart", "--resume")
    assert result.exit_code == 2
    assert "Give one of them" in result.output
    assert contents(tmp_path) == before


def test_many_cells_need_few_open_files(tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = ["reproduce", "figure3c", "--seeds", "40", "--epochs", "1", "--budget", "1s"]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
        result = cgq(*words, "--jobs", "1", "--out", str(tmp_path))  # a thousand cells
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "Too many open files" not in result.output
    assert result.exit_code == 0, result.output


def test_a_damaged_data_set_is_listed_as_such(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for name in names:
        (folder / name).write_bytes(b"nothing of it")
    monkeypatch.setenv("CGQ_DATA", str(tmp_path))
    result = cgq("data", "list")
    check_succeeded(result)
    assert "cifar10        damaged:" in result.output
    assert "stdlib" in result.output


def test_a_table_that_does_not_fit_says_where_it_is(tmp_path):
    check_succeeded(cgq(*QUICK, "--out", str(tmp_path)))
    narrow = CliRunner().invoke(app, ["report", str(tmp_path)], env={"COLUMNS": "12"})
    check_succeeded(narrow)
    assert "too wide for this terminal" in narrow.output.replace("\n", " ")
    assert "…" not in narrow.output


def test_help_teaches():
    result = cgq("--help")
    check_succeeded(result)
    for command in ("compare", "reproduce", "report", "landscape", "data"):
        assert command in result.output
    assert "cgq compare" in result.output
    assert "--task" in cgq("compare", "--help").output


def test_methods_lists_them_all():
    from cgqbench.methods import METHODS

    output = cgq("methods").output
    assert all(name in output for name in METHODS)


def test_data_list_shows_mnist_ready_and_how_to_get_the_others(tmp_path, monkeypatch):
    monkeypatch.setenv("CGQ_DATA", str(tmp_path))
    output = cgq("data", "list").output
    assert "60,000 + 10,000 images, ready" in output
    assert "cgq data get cifar10" in output
