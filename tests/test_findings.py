"""What the records say is read once, so that table, page and plots cannot disagree."""

import io
import json
import re
from collections import Counter
from pathlib import Path

from made_records import landscape, row, training, write
from rich.console import Console

from cgqbench.output.outcome import write_outcome


def test_an_outcome_reads_each_file_once(tmp_path, monkeypatch):
    records = tmp_path / "records"
    for seed in range(2):
        for method in ("sgd", "cgq"):
            write(records, training(seed, 3, 0.3, 98.0), method=method, seed=seed, times=[1.0] * 3)
    write(records / "copy", training(0, 3, 0.3, 98.0), method="sgd", times=[1.0] * 3)
    landscape(records, 2)
    files = set(records.rglob("*.jsonl"))
    read, opened = Counter(), Path.open

    def counted(path, *args, **options):
        read[path] += path in files
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", counted)
    write_outcome(records, tmp_path / "out", Console(file=io.StringIO()))
    assert len(files) == 11
    assert {path: read[path] for path in files} == dict.fromkeys(files, 1)


def test_an_epoch_that_ends_meanwhile_is_in_all_of_it_or_in_none(tmp_path, monkeypatch):
    path = write(tmp_path / "records", [row(1, train_loss=0.5, test_accuracy=90.0)], end=None)
    console = Console(file=io.StringIO(), width=200)
    shown = console.print

    def later(*words, **options):
        with path.open("a") as file:
            file.write(json.dumps(row(2, train_loss=0.125, test_accuracy=99.0)) + "\n")
        shown(*words, **options)

    monkeypatch.setattr(console, "print", later)
    write_outcome(tmp_path / "records", tmp_path / "out", console)
    texts = [(tmp_path / "out" / name).read_text() for name in ("table.md", "report.html")]
    assert all("90.00" in text and "99.00" not in text for text in texts)
    (data,) = re.findall(r'id="data">(.*?)</script>', texts[1], re.S)
    (curves,) = [line["curves"] for line in json.loads(data)["charts"][0]["series"]]
    assert curves["train_loss"]["mean"] == [0.5]
