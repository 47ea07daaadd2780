"""The report misleads nobody: not on a phone, not over time, not while a run is young."""

import io

import pytest
from browser import choose, started, window
from made_records import landscape, row, training, write
from rich.console import Console

from cgqbench.analysis.findings import findings
from cgqbench.output.outcome import write_outcome
from cgqbench.output.page.report import write_report


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with started(tmp_path_factory.mktemp("browser")) as running:
        yield running


def opened(driver, folder, width=1100):
    window(driver, width)
    driver.get(write_report(findings(folder), folder / "report.html").as_uri())
    return driver.find_element("tag name", "body")


def outcome(folder):
    console = Console(file=io.StringIO(), width=200)
    write_outcome(folder, folder / "out", console)
    return console.file.getvalue()


def test_past_its_end_a_method_is_not_ranked(tmp_path, driver):
    write(tmp_path, training(0, 4, 0.2, 97.0), times=[1.0] * 4)
    write(tmp_path, training(0, 4, 0.3, 98.0), method="cgq", times=[5.0] * 4)
    write(tmp_path, training(0, 2, 0.3, 98.0), method="adam", epochs=4, end=None, times=[1.0] * 2)
    write(tmp_path, training(0, 1, 0.3, 98.0), method="pal", epochs=4, end="diverged")
    body = opened(driver, tmp_path)
    plot, readout = (body.find_element("css selector", name) for name in (".plot", ".readout"))
    plot.send_keys("\ue012")  # the left arrow: from the end
    lines = readout.text.splitlines()
    assert lines[0] == "epoch 4"
    assert lines[5:] == ["Adam", "running", "PAL", "diverged"]
    choose(body, ".axis", "seconds")
    plot.send_keys("\ue014")  # the right arrow: the first second
    assert readout.text.splitlines()[0] == "1 s"
    assert "CGQ(2pt)" not in readout.text, "its first epoch takes five seconds"
    for _ in range(9):
        plot.send_keys("\ue014")
    lines = readout.text.splitlines()
    assert (lines[0], lines[1]) == ("20 s", "CGQ(2pt)")
    assert lines[3:] == ["SGD", "ended", "Adam", "running"]


def test_an_hour_s_seconds_are_shown_as_such(tmp_path):
    write(tmp_path, training(0, 2, 0.2, 97.0), times=[2.9] * 2)
    write(tmp_path, training(0, 2, 0.2, 97.0), times=[3625.2] * 2, method="cgq")
    outcome(tmp_path)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "2.90 s<" in page
    assert "3,625 s<" in page


def test_seconds_of_different_machines_are_told_apart(tmp_path, driver):
    write(tmp_path, training(0, 2, 0.2, 97.0), times=[1.0] * 2, hardware="Fast")
    write(tmp_path, training(0, 2, 0.2, 97.0), times=[2.0] * 2, hardware="Slow", method="cgq")
    body = opened(driver, tmp_path)
    assert "CGQ(2pt) (Slow, cpu, 1 thread)" in body.text
    assert "2.00 × SGD" not in body.text
    choose(body, ".axis", "seconds")
    assert "training seconds, of different machines" in body.text


def test_a_phone_s_table_leaves_room_for_the_numbers(tmp_path, driver):
    for method in ("a_method_of_a_very_long_name:without=any_space_to_break_it_at", "sgd"):
        write(tmp_path, training(0, 2, 0.2, 97.0), method=method)
    body = opened(driver, tmp_path, width=390)
    table = body.find_element("css selector", ".scroll:has(table)")
    assert table.find_element("css selector", "tbody th").size["width"] <= 0.4 * table.size["width"]
    plot, readout = (body.find_element("css selector", name) for name in (".plot svg", ".readout"))
    body.find_element("css selector", ".plot").send_keys("\ue014")
    assert readout.location["y"] >= plot.location["y"] + plot.size["height"]
    assert readout.find_elements("css selector", "svg.swatch line")
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize(
    ("epochs", "ticks"), [(1, ["1"]), (12, ["1", "2", "4", "6", "8", "10", "12"])]
)
def test_epochs_are_labelled_from_the_first_to_the_last(tmp_path, driver, epochs, ticks):
    write(tmp_path, training(0, epochs, 0.2, 97.0))
    opened(driver, tmp_path)
    # In one look: the page draws its plots again whenever their size changes.
    found = driver.execute_script(
        "return [...document.querySelectorAll('.plot .tick[text-anchor=middle]')]"
        ".map(tick => tick.textContent)"
    )
    assert found == ticks


def test_a_phone_is_told_to_scroll_a_figure_and_why_there_are_no_curves(tmp_path, driver):
    for number in range(25):
        settings = {"lr": 0.1 + number, "max_momentum": 0.8}
        method = f"cgq:lr={0.1 + number},max_momentum=0.8"
        rows = training(0, 2, 0.2, 97.0)
        write(tmp_path, rows, experiment="figure3c", method=method, settings=settings)
    assert "Scroll the figure sideways" not in opened(driver, tmp_path).text
    text = opened(driver, tmp_path, width=390).text
    assert "Scroll the figure sideways" in text
    assert "No curves: 25 lines" in text


def test_a_page_of_landscapes_speaks_of_no_runs(tmp_path, driver):
    landscape(tmp_path, 2)
    assert "0 runs" not in opened(driver, tmp_path).text
    assert "1 plot is in" in outcome(tmp_path)


def test_a_first_epoch_still_running_has_a_table_and_a_page(tmp_path):
    write(tmp_path, [], end=None, epochs=3)
    text = outcome(tmp_path)
    assert "epoch 0 of 3" in text
    assert "plot" not in text
    assert "epoch 0 of 3" in (tmp_path / "out" / "table.md").read_text()


def test_runs_that_all_diverged_have_everything(tmp_path):
    for seed in range(2):
        write(tmp_path, [row(1)], end="diverged", epochs=3, seed=seed, times=[1.0])
    assert "3 plots are in" in outcome(tmp_path)
    assert "2 of 2 diverged" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
