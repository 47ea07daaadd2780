"""The report of very many runs, and of none."""

import json
import re

import pytest
from made_records import landscape, row, training, write

from cgqbench.analysis.findings import findings
from cgqbench.output.page.report import write_report
from cgqbench.records.record import RecordError


def test_thirty_long_runs_stay_small(tmp_path):
    for method in ("sgd", "adam", "pal", "cgq", "scgq", "a", "b", "c", "d", "e"):
        for seed in range(3):
            write(tmp_path, training(seed, 60, 0.1, 97.0), method=method, seed=seed)
    landscape(tmp_path, 200)
    report = write_report(findings(tmp_path), tmp_path / "report.html")
    assert report.stat().st_size < 500_000
    text = report.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    steps = [search["step"] for search in json.loads(data)["landscapes"][0]["searches"]]
    assert (len(steps), steps[0], steps[-1]) == (120, 1, 17 * 199 + 1)


def test_too_many_lines_are_left_to_the_table(tmp_path):
    for number in range(25):
        write(tmp_path, [row(1, train_loss=0.1 + number)], method=f"cgq:lr={number}")
    text = write_report(findings(tmp_path), tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'class="chart"' not in text
    assert "lr=24" in text


def test_an_empty_folder_names_the_cure(tmp_path):
    with pytest.raises(RecordError, match="cgq compare --out"):
        write_report(findings(tmp_path), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
