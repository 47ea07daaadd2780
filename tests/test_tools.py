"""The scripts that show what a change of the source has changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[1] / "tools"
HEADER = {"kind": "cell", "network": "mlp", "method": "sgd", "versions": {}, "command": "cgq"}
ROW, END = {"kind": "epoch", "test_loss": 0.1}, {"kind": "end", "status": "finished"}


def write(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "records/compare/mnist-mlp-sgd-0.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    path.with_suffix(".times.jsonl").write_text(json.dumps({"seconds": str(folder)}) + "\n")
    return folder


def compared(before: Path, after: Path) -> tuple[int, str]:
    command = [sys.executable, TOOLS / "same_records.py", "compare", before, after]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    return done.returncode, done.stdout.splitlines()[0] if done.stdout else done.stderr


def test_same_records_forgets_the_command_and_the_versions_only(tmp_path: Path) -> None:
    before = write(tmp_path / "before", HEADER, ROW, END)
    after = write(tmp_path / "after", {**HEADER, "command": "x", "versions": {"a": 1}}, ROW, END)
    status, table = compared(before, after)
    assert status == 0
    assert table.endswith("identical")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([HEADER, {**ROW, "test_loss": 0.1 + 2**-56}, END], "line 2, test_loss: 0.1 → 0.10000"),
        ([{**HEADER, "method": "sgd:lr=1"}, ROW, END], "line 1, method: 'sgd' → 'sgd:lr=1'"),
        ([HEADER, dict(reversed(ROW.items())), END], "line 2, order of the keys"),
        ([HEADER, {**ROW, "new": None}, END], "line 2, new: missing → None"),
        ([HEADER, ROW], "line 3: missing after"),
    ],
)
def test_same_records_tells_the_first_difference(
    lines: list[dict[str, Any]], told: str, tmp_path: Path
) -> None:
    before = write(tmp_path / "before", HEADER, ROW, END)
    status, table = compared(before, write(tmp_path / "after", *lines))
    assert status == 1
    assert told in table


def test_same_records_wants_whole_records_on_both_sides(tmp_path: Path) -> None:
    unfinished = write(tmp_path / "unfinished", HEADER, ROW)
    (tmp_path / "empty").mkdir()
    assert compared(unfinished, unfinished)[0] == 1
    assert compared(unfinished, tmp_path / "empty")[0] == 1
    assert compared(tmp_path / "empty", tmp_path / "empty")[0] == 1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code knows no qualified names")
def test_house_sees_more_in_a_searched_step() -> None:
    command = [sys.executable, TOOLS / "house.py", "--json"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for optimizer in ("CGQ", "LineSearch(AdamW)"):
        for what in ("files", "classes", "classes with records"):
            few, many = (
                set(rows[f"{optimizer}, {kind} step: {what}"])
                for kind in ("unsearched", "searched")
            )
            assert 0 < len(few) < len(many)
    assert rows["lines of code, cgq without hosts"] < rows["lines of code, all of cgq"]
    assert "cgq.lightning" in rows["files, hosts"]
    assert "cgq" in rows["files, cgq without hosts"]
