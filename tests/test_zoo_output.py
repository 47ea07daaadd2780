"""The zoo's tables, figures and section of the page, from made records."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from made_records import row, write
from made_sweeps import keeping
from made_zoo import cell, train_loss, zoo
from rich.console import Console

from cgqbench.analysis.comparison import Comparison, comparisons
from cgqbench.analysis.findings import findings
from cgqbench.output.answers import answers
from cgqbench.output.figures import every_figure
from cgqbench.output.figures.zoo_curves import at_start, over_seconds, over_steps
from cgqbench.output.figures.zoo_profile import profile
from cgqbench.output.outcome import write_outcome
from cgqbench.output.page.report import write_report
from cgqbench.output.results_table import results_tables
from cgqbench.output.table import Table, TableCell
from cgqbench.output.zoo.methods import zoo_methods
from cgqbench.output.zoo.start import zoo_start
from cgqbench.output.zoo.tasks import zoo_tasks
from cgqbench.records.reading import runs

FEW = ("gcn", "lstm")


def compared(folder: Path) -> list[Comparison]:
    return comparisons(runs(folder))


def lines(cell: TableCell) -> list[str]:
    return ["".join(span.text for span in line) for line in (cell.value, *cell.notes)]


def text(table: Table | None) -> list[list[str]]:
    assert table is not None
    return [["; ".join(lines(cell)) for cell in row] for row in table.rows]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two tasks, one of each half and measure, worked out by hand below."""
    cell(tmp_path, "gpt_small", "adamw:lr=0.001", 1.62, 1.58, speed=0.9)
    cell(tmp_path, "gpt_small", "adamw:lr=0.003", 1.55, 1.54)
    cell(tmp_path, "gpt_small", "adamw_cosine:lr=0.003", 1.50, 1.52)
    cell(tmp_path, "gpt_small", "prodigy", 1.53, 1.56, speed=0.5)
    cell(tmp_path, "gpt_small", "search", 1.60, 1.503, speed=1.5)
    cell(tmp_path, "vgg_svhn", "adamw:lr=0.001", 90.0, 91.0)
    cell(tmp_path, "vgg_svhn", "adamw_cosine:lr=0.001", 90.5, 90.0)
    cell(tmp_path, "vgg_svhn", "prodigy", None)
    for seed, accuracy in enumerate((90.2, 90.6)):
        cell(tmp_path, "vgg_svhn", "search", 88.0, accuracy, speed=0.8, seed=seed)
    return tmp_path


def test_every_task_has_a_row(small: Path) -> None:
    table = zoo_tasks(compared(small))
    heads = [column.title for column in table.columns]
    assert heads == ["task", "best tuned", "AdamW lr=0.001", "Prodigy", "LineSearch"]
    gpt, vgg = text(table)
    assert gpt == [
        "GPT, small; chosen on; 1,500 steps; test loss",
        "1.500; AdamW + cosine lr=0.003; averaged 1.520; 1.00 passes, 6 s",
        "1.580; 5.3 % worse; final 1.620; 1.00 passes, 6 s",
        "1.530; 2.0 % worse; averaged 1.560; 1.00 passes, 6 s",
        "1.503; 0.2 % worse; final 1.600; 1.10 passes, 6.6 s",
    ]
    assert vgg[0] == "VGG-16, SVHN; reported; 2,000 steps; test accuracy (%)"
    assert vgg[1].startswith("91.00; AdamW lr=0.001; final 90.00")
    assert vgg[3] == "died"
    assert vgg[4].startswith("90.40 ± 0.28; 0.60 points worse; 2 seeds; final 88.00 ± 0.00; 1.10")
    bold = [[any(span.bold for span in cell.value) for cell in row] for row in table.rows]
    assert bold == [[False] * 4 + [True], [False, False, True, False, False]]


def test_every_method_has_a_row_with_its_worst_case(small: Path) -> None:
    rows = text(zoo_methods(compared(small)))
    assert [line[:2] for line in rows] == [
        [part, label]
        for part in ("reported", "all")
        for label in ("AdamW lr=0.001", "Prodigy", "LineSearch")
    ]
    assert rows[1][2:7] == ["–", "died (VGG-16, SVHN)", "0 of 1", "0 of 1", "VGG-16, SVHN"]
    assert rows[4][2:7] == [
        "2.0 % worse (GPT, small)",
        "died (VGG-16, SVHN)",
        "0 of 2",
        "0 of 2",
        "VGG-16, SVHN",
    ]
    # On VGG AdamW's own rate is the reference, and first.
    assert rows[3][2:] == ["5.3 % worse (GPT, small)", "level (VGG-16, SVHN)", "1 of 2", "1 of 2",
                           "none", "1.00", "1.00 ×"]  # fmt: skip
    assert rows[5][2:] == [
        "0.2 % worse (GPT, small)",
        "0.60 points worse (VGG-16, SVHN)",
        *("1 of 2", "1 of 2", "none", "1.10", "1.10 ×"),
    ]


def test_every_task_has_the_steps_to_a_milestone(small: Path) -> None:
    table = zoo_start(compared(small))
    assert table is not None
    assert table.columns[2].title == "AdamW + cosine, tuned"
    gpt, vgg, reported, everything = text(table)
    # Stretches of 8 steps begin anew at 150, so that the first of the last 50 steps is 247.
    level = sum(train_loss(step, 1.0) for step in range(247, 301)) / 54
    assert gpt[:3] == ["GPT, small; chosen on", f"{level:.3f}; AdamW lr=0.003, step 300", "300"]
    assert vgg[1] == "1.254; AdamW lr=0.001, step 300"  # those of 10 fit
    assert vgg[4] == "–", "the dead never arrive"
    assert reported[0] == "median, reported"
    assert reported[4] == "–"
    assert reported[5] == vgg[5]
    middle = (int(gpt[5]) + int(vgg[5])) / 2
    assert int(everything[5]) == pytest.approx(middle, abs=1)
    assert int(gpt[5]) < 300 < int(vgg[5])


@pytest.fixture
def with_fresh(small: Path) -> Path:
    """A third task, of the fresh part."""
    cell(small, "flow", "adamw:lr=0.001", 8.0, 7.9)
    cell(small, "flow", "adamw_cosine:lr=0.003", 7.6, 7.7)
    cell(small, "flow", "prodigy", 7.6, 7.8, speed=0.9)
    cell(small, "flow", "search", 7.7, 7.638, speed=1.2)
    return small


def test_the_fresh_part_has_rows_of_its_own(with_fresh: Path) -> None:
    tasks = text(zoo_tasks(compared(with_fresh)))
    assert tasks[2][0] == "flow; fresh; 1,500 steps; test loss"
    assert tasks[2][4].startswith("7.638; 0.5 % worse; final 7.700")
    methods = text(zoo_methods(compared(with_fresh)))
    assert [line[0] for line in methods] == [*["reported"] * 3, *["fresh"] * 3, *["all"] * 3]
    assert methods[5][1:7] == [
        *("LineSearch", "0.5 % worse (flow)", "–", "1 of 1", "0 of 1", "none")
    ]
    assert [line[4] for line in methods[6:]] == ["1 of 3", "1 of 3", "2 of 3"]
    start = text(zoo_start(compared(with_fresh)))
    words = ["flow; fresh", "median, reported", "median, fresh", "median, all"]
    assert [line[0] for line in start[2:]] == words
    assert start[4][5] == start[2][5]
    assert int(start[5][5]) == sorted(int(line[5]) for line in start[:3])[1]


def test_the_other_parts_rows_are_those_without_it(small: Path) -> None:
    before = [text(make(compared(small))) for make in (zoo_tasks, zoo_methods, zoo_start)]
    cell(small, "flow", "adamw:lr=0.001", 8.0, 7.9)
    cell(small, "flow", "search", 7.7, 7.6)
    after = [text(make(compared(small))) for make in (zoo_tasks, zoo_methods, zoo_start)]
    assert after[0][:2] == before[0]
    assert after[1][:3] == before[1][:3]
    assert after[2][:2] == before[2][:2]
    assert after[2][3] == before[2][2], "the median of the reported"


def test_tasks_too_short_for_it_are_in_no_median(tmp_path: Path) -> None:
    cell(tmp_path, "lora", "adamw:lr=0.001", 2.0)
    cell(tmp_path, "lora", "search", 2.0, speed=2.0)
    rows = text(zoo_start(compared(tmp_path)))
    assert rows[0][1].endswith("step 200")
    assert rows[0][3].isdecimal()
    assert rows[1][1:] == ["", "", ""]


def test_no_zoo_no_tables(tmp_path: Path) -> None:
    write(tmp_path, [row(1, train_loss=0.1, test_accuracy=98.0)], experiment="compare")
    assert answers(compared(tmp_path)) == []
    assert "The zoo" not in [table.title for table in results_tables(compared(tmp_path)).values()]


def test_records_of_before_have_all_but_the_milestones(tmp_path: Path) -> None:
    for method, loss in (("adamw:lr=0.001", 1.5), ("search", 1.4)):
        rows = [row(1, train_loss=loss, test_loss=loss, average_test_loss=loss)]
        told = {"experiment": "zoo", "dataset": "zoo", "network": "lstm", "method": method}
        write(tmp_path, rows, **told)
    assert [table.title for table in answers(compared(tmp_path))] == ["The zoo, method by method"]
    assert text(zoo_tasks(compared(tmp_path)))[0][
        3
    ] == "1.400; 6.7 % better; averaged 1.400".replace("averaged", "final")
    for draw in (profile, over_steps, over_seconds, at_start):
        assert draw(compared(tmp_path), tmp_path / "figure.png").stat().st_size > 10_000


# --- figures


def shares(axis: Any, label: str) -> dict[float, float]:
    (line,) = [line for line in axis.get_lines() if line.get_label() == label]
    places, heights = line.get_data()
    return dict(zip(places, heights, strict=True))


def test_the_profile_counts_the_tasks_near_the_best(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keeping(monkeypatch, "zoo_profile")
    profile(compared(small), small / "profile.png")
    reported, everything = kept[0].axes
    assert reported.get_title(loc="left") == "Reported: 1 task"
    assert everything.get_title(loc="left") == "All: 2 tasks"
    # GPT: 1.503 / 1.5; VGG: an error of 9.6 to the best 9.
    search = shares(everything, "LineSearch")
    assert list(search) == pytest.approx([0.1, 0.2, 100 * (9.6 / 9 - 1), 100])
    assert list(search.values()) == [0.0, 0.5, 1.0, 1.0]
    prodigy = shares(everything, "Prodigy")
    assert list(prodigy) == pytest.approx([0.1, 2.0, 100])
    assert max(prodigy.values()) == 0.5, "dead on one of two"
    assert shares(reported, "Prodigy") == {0.1: 0.0, 100.0: 0.0}
    # Best on both: there from the start.
    assert shares(everything, "AdamW, best rate and schedule") == {0.1: 1.0, 100.0: 1.0}


def test_the_profile_has_a_panel_for_each_part(
    with_fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keeping(monkeypatch, "zoo_profile")
    profile(compared(with_fresh), with_fresh / "profile.png")
    titles = [axis.get_title(loc="left") for axis in kept[0].axes]
    assert titles == ["Reported: 1 task", "Fresh: 1 task", "All: 3 tasks"]
    assert list(shares(kept[0].axes[1], "LineSearch")) == pytest.approx([0.1, 0.5, 100])
    assert shares(kept[0].axes[2], "LineSearch")[100] == 1.0


def test_a_panel_for_each_task_over_steps_and_over_time(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keeping(monkeypatch, "zoo_curves")
    over_steps(compared(small), small / "steps.png")
    over_seconds(compared(small), small / "seconds.png")
    at_start(compared(small), small / "start.png")
    names = [axis.get_title(loc="left") for axis in kept[0].axes]
    assert names == ["GPT, small", "VGG-16, SVHN"]
    assert [axis.get_title(loc="right") for axis in kept[0].axes] == ["chosen on", "reported"]
    steps, seconds, start = (figure.axes for figure in kept)
    line = shares(steps[0], "LineSearch")
    assert list(line) == [150 * epoch for epoch in range(1, 11)]
    assert line[1500] == pytest.approx(1.503)
    assert shares(steps[1], "AdamW, best constant rate")[2000] == pytest.approx(9.0)
    assert list(shares(seconds[0], "LineSearch"))[-1] == pytest.approx(6.6)
    early = shares(start[1], "LineSearch")
    assert max(early) == 500
    assert min(early) == 10
    # What is far above the tuned is out of sight: 1.2 times their largest value is the edge.
    top = max(shares(steps[0], "AdamW, best constant rate").values())
    other = max(shares(steps[0], "AdamW + cosine, best rate").values())
    assert steps[0].get_ylim()[1] == pytest.approx(1.2 * max(top, other))


def test_the_zoo_has_four_files_and_none_for_each_task(tmp_path: Path) -> None:
    zoo(tmp_path, tasks=FEW)
    written = every_figure(findings(tmp_path), tmp_path / "plots")
    assert [path.name for path in written] == [
        *("zoo-profile.png", "zoo-steps.png", "zoo-seconds.png", "zoo-start.png")
    ]
    again = every_figure(findings(tmp_path), tmp_path / "again")
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in again]


def test_everything_is_written_at_once(tmp_path: Path) -> None:
    zoo(tmp_path / "records", tasks=FEW)
    console = Console(width=220, record=True, file=io.StringIO())
    write_outcome(tmp_path / "records", tmp_path, console)
    page = (tmp_path / "table.md").read_text()
    for title in ("The zoo, method by method", "The zoo, steps to the loss", "The zoo\n"):
        assert f"## {title}" in page
    assert "4 plots are in" in console.export_text()
    assert page.index("| GCN<br>chosen on") < page.index("| LSTM<br>reported")


def test_the_page_has_the_profile_and_a_chart_for_each_task(tmp_path: Path) -> None:
    zoo(tmp_path, tasks=FEW)
    page = write_report(findings(tmp_path), tmp_path / "report.html").read_text()
    assert page.count('<img src="data:image/png;base64,') == 1
    assert page.count('class="chart"') == len(FEW)
