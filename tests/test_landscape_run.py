"""`cgq landscape`: what it writes, where it goes on, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import TASK, cgq, check_succeeded, contents

from cgqbench.cli import commands
from cgqbench.records import checkpoint, latest_state
from cgqbench.training import landscape_run


def test_landscape_records_lines_and_draws_them(tmp_path):
    result = cgq(
        "landscape", "--task", TASK, "--epochs", "2", "--looks", "6", "--out", str(tmp_path)
    )
    check_succeeded(result)
    (path,) = (tmp_path / "records").rglob("*.landscape.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["kind"] == "cell"
    assert {line["kind"] for line in lines[1:]} == {"landscape"}
    assert len(lines) >= 5
    assert (tmp_path / "report.html").exists()


def test_landscape_does_not_pass_an_old_file_off_as_a_new_one(tmp_path):
    words = ["landscape", "--task", TASK, "--out", str(tmp_path), "--quiet"]
    check_succeeded(cgq(*words, "--looks", "3"))
    before = contents(tmp_path)
    check_succeeded(cgq(*words, "--looks", "3"))
    assert contents(tmp_path) == before
    result = cgq(*words, "--looks", "4")
    assert result.exit_code == 2
    assert "looks 3, not 4" in result.output
    assert "--restart" in result.output
    check_succeeded(cgq(*words, "--looks", "4", "--restart"))
    assert contents(tmp_path) != before


def interrupt_in(patch: pytest.MonkeyPatch, number: int) -> None:
    whole_epoch = landscape_run._epoch

    def interrupted(learner, epoch, *others):
        if epoch == number:
            raise KeyboardInterrupt
        return whole_epoch(learner, epoch, *others)

    patch.setattr(landscape_run, "_epoch", interrupted)


def lines(folder: Path) -> list[bytes]:
    """Of the one file."""
    (content,) = contents(folder).values()
    return content.splitlines()


def test_an_interrupted_one_goes_on_and_leaves_the_same_bytes(tmp_path, monkeypatch):
    words = ["landscape", "--task", TASK, "--epochs", "3", "--looks", "8", "--quiet", "--out"]
    check_succeeded(cgq(*words, str(tmp_path / "whole")))
    cut = tmp_path / "cut"
    with monkeypatch.context() as patch:
        interrupt_in(patch, 3)
        result = cgq(*words, str(cut))
    assert result.exit_code == 130
    assert "with --resume goes on after the last whole epoch" in result.output
    assert not list(cut.rglob("*.jsonl")), "half of it is no file yet"
    result = cgq(*words, str(cut))
    assert result.exit_code == 2
    assert "unfinished (2 of 3 epochs). Add --resume" in result.output
    result = cgq(*words, str(cut), "--resume", "--looks", "9")
    assert result.exit_code == 2
    assert "looks 8, not 9" in result.output
    check_succeeded(cgq(*words, str(cut), "--resume"))
    assert lines(cut) == lines(tmp_path / "whole")
    epochs = {json.loads(line)["epoch"] for line in lines(cut)[1:]}
    assert {1, 3} <= epochs, "the test would show nothing"


def test_a_checkpoint_in_parts_does_not_get_in_its_way(tmp_path, monkeypatch):
    words = ["landscape", "--task", TASK, "--epochs", "3", "--looks", "8", "--quiet", "--out"]
    check_succeeded(cgq(*words, str(tmp_path / "small")))
    monkeypatch.setattr(checkpoint, "LIMIT", 1000)
    check_succeeded(cgq(*words, str(tmp_path / "large")))
    assert lines(tmp_path / "large") == lines(tmp_path / "small")
    assert [path.name for path in (tmp_path / "large").rglob("*.ckpt*")] == []


def test_its_end_writes_no_state(tmp_path, monkeypatch):
    """Nobody goes on from there, and a full disk would take away what was seen."""
    saved, save = list[int](), checkpoint.Checkpoint.save

    def counted(self, content, epoch):
        saved.append(content["epoch"])
        save(self, content, epoch)

    monkeypatch.setattr(checkpoint.Checkpoint, "save", counted)
    monkeypatch.setattr(latest_state, "SHARE", 1e-9)
    words = ["landscape", "--task", TASK, "--epochs", "4", "--looks", "8", "--quiet", "--out"]
    check_succeeded(cgq(*words, str(tmp_path)))
    assert saved == [1]


def test_a_damaged_checkpoint_names_the_cure(tmp_path, monkeypatch):
    words = ["landscape", "--task", TASK, "--epochs", "2", "--quiet", "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        interrupt_in(patch, 2)
        assert cgq(*words).exit_code == 130
    (part,) = tmp_path.rglob("*.ckpt.*")
    part.write_bytes(part.read_bytes()[:100])
    result = cgq(*words, "--resume")
    assert result.exit_code == 2
    assert "no whole checkpoint" in result.output.replace("\n", " ")
    check_succeeded(cgq(*words, "--restart"))
    assert not list(tmp_path.rglob("*.ckpt*"))


def test_a_finished_one_is_kept_whatever_made_it(tmp_path):
    words = ["landscape", "--task", TASK, "--epochs", "1", "--looks", "8", "--quiet", "--out"]
    check_succeeded(cgq(*words, str(tmp_path)))
    (path,) = tmp_path.rglob("*.landscape.jsonl")
    first, *rest = path.read_text().splitlines()
    header = json.loads(first)
    header["versions"]["torch"], header["kernels"] = "1.13", "others"
    path.write_text("\n".join([json.dumps(header), *rest, ""]))
    before = path.read_bytes()
    check_succeeded(cgq(*words, str(tmp_path)))
    assert path.read_bytes() == before
    result = cgq(*words, str(tmp_path), "--looks", "9")
    assert result.exit_code == 2
    assert "looks 8, not 9" in result.output


def test_the_task_is_tried_before_it_is_trained(tmp_path):
    task = tmp_path / "task.py"
    task.write_text(Path(TASK).read_text() + "\n\ndef loss(output, target):\n    return output\n")
    result = cgq("landscape", "--task", str(task), "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "must be one number" in result.output.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_restarted_interrupted_and_resumed(tmp_path, monkeypatch):
    """The file from before does not pass for the new one, nor stand in its way."""
    words = ["landscape", "--task", TASK, "--epochs", "2", "--quiet", "--out", str(tmp_path)]
    check_succeeded(cgq(*words, "--looks", "3"))
    with monkeypatch.context() as patch:
        interrupt_in(patch, 2)
        assert cgq(*words, "--looks", "6", "--restart").exit_code == 130
    check_succeeded(cgq(*words, "--looks", "6", "--resume"))
    assert json.loads(lines(tmp_path)[0])["looks"] == 6
    assert {json.loads(line)["epoch"] for line in lines(tmp_path)[1:]} == {1, 2}


def test_killed_after_its_last_look(tmp_path, monkeypatch):
    words = ["landscape", "--task", TASK, "--epochs", "2", "--quiet", "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(landscape_run.Checkpoint, "remove", lambda self: None)
        check_succeeded(cgq(*words))
    assert list(tmp_path.rglob("*.ckpt"))
    check_succeeded(cgq(*words))
    assert len(contents(tmp_path)) == 1


def test_two_at_once_are_kept_apart(tmp_path, monkeypatch):
    words = ["landscape", "--task", TASK, "--quiet", "--out", str(tmp_path)]
    whole_epoch, results = landscape_run._epoch, []

    def with_another_beside(*arguments):
        monkeypatch.setattr(landscape_run, "_epoch", whole_epoch)
        results.append(cgq(*words))
        return whole_epoch(*arguments)

    monkeypatch.setattr(landscape_run, "_epoch", with_another_beside)
    check_succeeded(cgq(*words))
    (other,) = results
    assert other.exit_code == 2
    assert "is being written by another process" in other.output.replace("\n", " ")
    assert len(contents(tmp_path)) == 1


def test_a_damaged_file_names_the_cure(tmp_path):
    words = ["landscape", "--task", TASK, "--quiet", "--out", str(tmp_path)]
    check_succeeded(cgq(*words))
    (path,) = tmp_path.rglob("*.landscape.jsonl")
    for damaged in (b"", b"not JSON\n"):
        path.write_bytes(damaged)
        result = cgq(*words)
        assert result.exit_code == 2
        assert "Add --restart" in result.output.replace("\n", " ")
    check_succeeded(cgq(*words, "--restart"))


@pytest.mark.parametrize(
    "words",
    [["--seeds", "2"], ["--jobs", "1"], ["--fast"], ["--no-average"], ["--only", "mnist"]],
    ids=" ".join,
)
def test_figure1_refuses_what_it_would_not_heed(words):
    result = cgq("reproduce", "figure1", *words)
    assert result.exit_code == 2
    assert f"not heed {words[0]}. figure1 is one run. For others: cgq landscape" in result.output


def test_figure1_takes_what_says_nothing(monkeypatch):
    """Defaults, as a script may spell them out for every item."""
    heard = []
    monkeypatch.setattr(commands, "landscape", lambda **words: heard.append(words))
    given = ["--seeds", "3", "--engine", "local", "--average", "--graphs", "--resume"]
    check_succeeded(cgq("reproduce", "figure1", *given, "--epochs", "2"))
    assert heard[0]["resume"]
    assert heard[0]["epochs"] == 2
