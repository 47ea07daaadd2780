"""Language models: the networks, and a comparison of methods on them."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from browser import choose, started, window
from made_records import row, write
from typer.testing import CliRunner

from cgqbench.analysis.comparison import comparisons
from cgqbench.analysis.findings import findings
from cgqbench.cli import app
from cgqbench.experiments import EXPERIMENTS
from cgqbench.experiments.cell import Cell
from cgqbench.methods import chosen
from cgqbench.output.page.report import write_report
from cgqbench.records.identity import record_path
from cgqbench.records.reading import runs
from cgqbench.tasks import named
from cgqbench.tasks.data import stdlib
from cgqbench.tasks.data.text import LENGTH, VOCABULARY
from cgqbench.tasks.named import by_name
from cgqbench.tasks.networks import LANGUAGE_MODELS, language_model, repeated_blocks
from cgqbench.tasks.networks.gpt import GPT
from cgqbench.tasks.task import per_character
from cgqbench.training.engines import ENGINES
from cgqbench.training.engines.events import Ended, Event, Started
from cgqbench.training.learner import parameter_count
from cgqbench.training.runner import Conditions, run_cell


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny GPT, epochs of three batches and few tests, in place of minutes of training."""
    tiny = partial(GPT, width=16, layers=2, heads=2)
    monkeypatch.setitem(LANGUAGE_MODELS, "gpt1m", tiny)
    monkeypatch.setattr(named, "WINDOWS", 40)
    monkeypatch.setattr(stdlib, "TESTS", 20)


def characters(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


# --- the networks


def test_the_sizes_are_those_of_their_names() -> None:
    counts = {
        name: parameter_count(language_model(name, VOCABULARY, LENGTH)) for name in LANGUAGE_MODELS
    }
    assert 0.8e6 < counts["gpt1m"] < 1.1e6
    assert 10e6 < counts["gpt10m"] < 11e6


def test_a_character_changes_nothing_before_it_and_something_after() -> None:
    torch.manual_seed(0)
    model = language_model("gpt1m", VOCABULARY, LENGTH).double()
    before, after = characters(2), characters(2)
    after[:, 70] = (before[:, 70] + 1) % VOCABULARY
    with torch.no_grad():
        change = (model(after) - model(before)).abs().amax((0, 2))
    assert change[:70].max() < 1e-12
    assert change[70:].min() > 1e-6


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_an_untrained_model_knows_nothing(name: str) -> None:
    torch.manual_seed(0)
    model = language_model(name, VOCABULARY, LENGTH)
    with torch.no_grad():
        loss = per_character(model(characters(4)), characters(4, seed=1))
    assert loss.item() == pytest.approx(math.log(VOCABULARY), abs=0.1)


def test_it_learns_what_follows_what() -> None:
    torch.manual_seed(0)
    model = GPT(VOCABULARY, LENGTH, width=16, layers=2, heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    turns = (characters(8)[:, :1] + torch.arange(LENGTH + 1)) % 5
    for _ in range(50):
        optimizer.zero_grad()
        loss = per_character(model(turns[:, :-1]), turns[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2


def test_it_reads_less_than_it_can_and_its_blocks_are_found() -> None:
    model = language_model("gpt1m", VOCABULARY, LENGTH)
    assert model(characters(2)[:, :7]).shape == (2, 7, VOCABULARY)
    assert len(repeated_blocks(model)) == 4


# --- comparisons


def cgq(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.output


def here(cells, conditions, jobs):  # type: ignore[no-untyped-def]
    """Runs cells in this process, where the fixture's sizes hold."""
    for cell in cells:
        yield Event(cell, Started())
        rows: list[Event] = []
        run_cell(
            cell, conditions, lambda news, cell=cell, rows=rows: rows.append(Event(cell, news))
        )
        yield from rows
        yield Event(cell, Ended())


@pytest.mark.usefixtures("few")
def test_a_comparison_shows_the_test_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "local", here)
    methods = ["-m", "scgq_relative", "-m", "adamw", "-m", "adamw_cosine"]
    words = ["--dataset", "stdlib", "--network", "gpt1m", "--batch-size", "16", "--epochs", "2"]
    output = cgq("compare", *words, *methods, "--out", str(tmp_path))
    found = {run.header["method"]: run for run in runs(tmp_path)}
    assert set(found) == {"adamw", "adamw_cosine", "scgq_relative"}
    for run in found.values():
        assert run.header["checksum"] == by_name("stdlib", "gpt1m").checksum
        assert run.header["batches"] == 3
        last = run.epochs[-1]
        assert last["test_accuracy"] is last["average_test_accuracy"] is None
        assert last["average_test_loss"] < math.log(VOCABULARY) + 0.1
        assert f"test loss {last['test_loss']:.4f}" in output
    table = (tmp_path / "table.md").read_text()
    assert "Python source / GPT-1M" in table
    assert table.index("| AdamW |") < table.index("| AdamW + cosine |")
    assert table.index("| AdamW + cosine |") < table.index("| sCGQ, relative |")
    assert f"/ test loss {found['adamw'].epochs[-1]['test_loss']:.3f}" in table.replace("*", "")
    page = (tmp_path / "report.html").read_text()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    shown = [metric["key"] for metric in data["charts"][0]["metrics"]]
    assert shown[:3] == ["train_loss", "test_loss", "average_test_loss"]
    assert len(list((tmp_path / "plots").glob("*dynamics.png"))) == 1


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("method", ["adamw_cosine", "scgq_relative", "schedulefree_adamw"])
def test_a_resumed_run_leaves_the_bytes_of_one_in_a_single_go(method: str, tmp_path: Path) -> None:
    cell = Cell("test", "stdlib", "gpt1m", method, seed=1, epochs=3, batch_size=16)
    run_cell(cell, Conditions(tmp_path / "whole"))

    class Killed(BaseException):
        pass

    def tell(news: object) -> None:
        if isinstance(news, dict) and news["epoch"] == 2:
            raise Killed

    with pytest.raises(Killed):
        run_cell(cell, Conditions(tmp_path / "resumed"), tell)
    torch.manual_seed(5)
    run_cell(cell, Conditions(tmp_path / "resumed", resume=True))
    paths = [record_path(cell, tmp_path / folder) for folder in ("whole", "resumed")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_text().count('"epoch", ') == 3


def test_texts_of_two_pythons_stand_apart_under_names_of_their_own(tmp_path: Path) -> None:
    rows = [row(1, train_loss=2.0, test_loss=2.1)]
    for seed, checksum in enumerate(("0123456789", "abcdefghij")):
        cell = {"experiment": "lm", "dataset": "stdlib", "network": "gpt1m", "seed": seed}
        write(tmp_path, rows, checksum=checksum, **cell)
    assert [one.name for one in comparisons(runs(tmp_path))] == [
        "Python source / GPT-1M, version 01234567",
        "Python source / GPT-1M, version abcdefgh",
    ]


def test_the_page_reads_out_test_losses_and_a_phone_shows_whole_words(tmp_path: Path) -> None:
    for seed, loss in enumerate((1.44, 1.46)):
        for method in ("adamw", "schedulefree_adamw"):
            rows = [row(1, train_loss=2.5, test_loss=2.1), row(2, train_loss=1.5, test_loss=loss)]
            cell = {"experiment": "lm", "dataset": "stdlib", "method": method, "seed": seed}
            label = chosen(method, "gpt1m").label
            for network in ("gpt1m", "gpt10m"):
                write(tmp_path, rows, checksum="0123", label=label, network=network, **cell)
    page = write_report(findings(tmp_path), tmp_path / "report.html")
    with started(tmp_path / "browser") as driver:
        from selenium.webdriver.common.keys import Keys

        window(driver, 1000)
        driver.get(page.as_uri())
        chart = driver.find_element("css selector", ".chart")
        choose(chart, ".metric", "test_loss")
        chart.find_element("css selector", ".plot").send_keys(Keys.ARROW_LEFT)
        readout = chart.find_element("css selector", ".readout").text
        assert readout.splitlines() == [
            *("epoch 2", "AdamW", "1.450 ± 0.014", "Schedule-Free AdamW", "1.450 ± 0.014")
        ]
        window(driver, 390)
        name = driver.find_element("css selector", ".results tbody tr:last-child th")
        assert name.size["height"] < 90, "letters below each other"
        assert driver.get_log("browser") == []


def test_the_experiment_has_two_sizes_and_batches_of_32() -> None:
    cells = EXPERIMENTS["lm"].cells(seeds=2)
    assert {(cell.network, cell.epochs, cell.batch_size) for cell in cells} == {
        ("gpt1m", 6, 32),
        ("gpt10m", 6, 32),
    }
    assert len(cells) == 2 * 2 * len(EXPERIMENTS["lm"].methods)


def test_a_networks_own_settings_come_before_its_familys() -> None:
    assert chosen("adamw", "gpt1m").settings["lr"] == 1e-3
    assert chosen("adamw_cosine", "gpt1m").settings["lr"] == 3e-3
    assert chosen("adamw_cosine", "gpt10m").settings["lr"] == 1e-3
    assert chosen("adamw_cosine", "resnet110").settings["lr"] == 1e-3


@pytest.mark.parametrize(
    ("dataset", "network", "message"),
    [
        ("stdlib", "mlp", "No network for text is called 'mlp'. Choose one of gpt1m, gpt10m"),
        ("mnist", "gpt1m", "No network for images is called 'gpt1m'. Choose one of mlp"),
        ("novels", "gpt1m", "There is no data set 'novels'. Choose one of: mnist"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    dataset: str, network: str, message: str, tmp_path: Path
) -> None:
    words = ["compare", "--dataset", dataset, "--network", network, "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output
    assert not list(tmp_path.iterdir())


def test_the_text_needs_no_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CGQ_DATA", str(tmp_path))
    assert "windows of text, ready" in cgq("data", "get", "stdlib")
    assert "stdlib " in cgq("data", "list")
