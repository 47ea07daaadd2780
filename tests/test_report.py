"""The report as a reader meets it: in a real browser, without a network."""

import json
import re

import pytest
from browser import choose, shapes, started, window
from made_records import landscape, row, training, write

from cgqbench.analysis.findings import findings
from cgqbench.output.page.report import write_report

EVIL = "</script><img src=x onerror=\"document.title='broken'\">"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with started(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    speeds = {"sgd": 0.15, "adam": 0.25, "cgq": 0.4, "scgq": 0.35}
    for seed in range(3):
        for method, speed in speeds.items():
            rows = training(seed, 12, speed, 98.0)
            write(folder, rows, method=method, seed=seed, times=[1 + speed] * 12)
        write(folder, [row(1)], method="pal", seed=seed, epochs=12, end="diverged")
    write(folder, training(0, 3, 0.3, 97.0), method="evil:x=1", label=EVIL, epochs=12, end=None)
    write(folder, training(0, 2, 0.3, 97.0), experiment="own", task=f"{EVIL}.py", network="own")
    for probability in (0, 0.1, 1):
        name = {"experiment": "figure3b", "method": f"scgq:search_prob={probability}"}
        rows = training(0, 2, 0.3 + probability, 98.0)
        write(folder, rows, settings={"search_prob": probability}, **name)
    landscape(folder, 5)
    landscape(folder, 3, method="scgq")
    return folder


@pytest.fixture(scope="module")
def report(folder):
    return write_report(findings(folder), folder / "out" / "report.html", title="Records <made> up")


@pytest.fixture
def page(driver, report):
    """The report, opened at a desktop's width; afterwards the console must be empty."""
    window(driver, 1100)
    driver.get(report.as_uri())
    yield driver
    assert driver.get_log("browser") == []


def table1(page):
    """The first chart with several methods: MNIST / MLP of table 1."""
    charts = page.find_elements("css selector", ".chart")
    return next(chart for chart in charts if "CGQ(2pt)" in chart.text)


def lines(chart):
    return dict(shapes(chart, "path.line[data-label]", ["data-label", "d"]))


def test_the_page_says_what_the_records_say(page):
    assert page.title == "Records <made> up"
    text = page.find_element("tag name", "main").text
    for words in ("MNIST / MLP", "12 epochs", "3 of 3 diverged", "epoch 3 of 12", "paper (20"):
        assert words in text
    assert len(page.find_elements("css selector", ".results strong")) >= 3
    picture = page.find_element("css selector", "img")
    assert page.execute_script("return arguments[0].naturalWidth", picture) > 1000
    folded = page.execute_script("return document.getElementById('origin').textContent")
    for words in ("torch 2.13.0", "A made-up processor", "cgq reproduce table1", "lr=0.3"):
        assert words in folded


def test_the_legend_hides_and_shows_a_line_by_mouse_and_keyboard(page):
    chart = table1(page)
    assert "Adam" in lines(chart)
    buttons = chart.find_elements("css selector", ".legend button")
    adam = next(button for button in buttons if button.text == "Adam")
    adam.click()
    assert "Adam" not in lines(chart)
    assert "SGD" in lines(chart)
    assert adam.get_attribute("aria-pressed") == "false"
    adam.send_keys(" ")
    assert "Adam" in lines(chart)
    assert adam.get_attribute("aria-pressed") == "true"


def test_every_line_can_be_hidden(page):
    chart = table1(page)
    buttons = chart.find_elements("css selector", ".legend button")
    for button in buttons:
        button.click()
    assert lines(chart) == {}
    buttons[0].click()
    assert len(lines(chart)) == 1


def test_metric_axis_and_scale_change_what_is_drawn(page):
    chart = table1(page)
    log = chart.find_element("css selector", ".log")
    assert log.is_selected(), "train loss starts on a logarithmic scale"
    seen = [lines(chart)["SGD"]]
    log.click()
    seen.append(lines(chart)["SGD"])
    for metric in ("test_accuracy", "average_test_accuracy", "step_size", "momentum"):
        choose(chart, ".metric", metric)
        seen.append(lines(chart)["SGD"])
    choose(chart, ".axis", "seconds")
    seen.append(lines(chart)["SGD"])
    assert len(set(seen)) == len(seen)


def test_the_read_out_follows_pointer_and_arrow_keys(page):
    from selenium.webdriver import ActionChains

    chart = table1(page)
    plot = chart.find_element("css selector", ".plot")
    readout = chart.find_element("css selector", ".readout")
    assert not readout.is_displayed()
    ActionChains(page).move_to_element(plot).perform()
    assert re.match(r"epoch [67]\n", readout.text)
    assert re.search(r"CGQ\(2pt\)\n0\.\d+ ± 0\.\d+", readout.text)
    ActionChains(page).move_to_element(page.find_element("tag name", "h1")).perform()
    assert not readout.is_displayed()
    plot.send_keys("\ue014\ue014")  # the right arrow, twice
    assert readout.text.startswith("epoch 2\n")
    plot.send_keys("\ue00c")  # escape
    assert not readout.is_displayed()


def test_the_slider_moves_through_the_searches(page):
    root = page.find_element("css selector", ".landscape")
    slider = root.find_element("css selector", ".step")

    def drawing():
        names = ["class", "d", "x1", "cx", "cy"]
        return shapes(root, "path.line, line.taken, circle.trial", names)

    first = drawing()
    assert {shape[0] for shape in first} == {"line loss", "line two_point", "line taken", "trial"}
    slider.send_keys("\ue014")
    second = drawing()
    assert "line least_squares" in {shape[0] for shape in second}
    assert first != second
    assert root.find_element("css selector", ".where").text == "step 18, epoch 1"
    assert slider.get_attribute("aria-valuetext") == "step 18, epoch 1"
    choose(root, ".run", "1")
    assert slider.get_attribute("max") == "2"
    assert root.find_element("css selector", ".where").text == "step 1, epoch 1"
    assert "sCGQ(2pt)" in root.text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_page_without_scrolling_sideways(driver, report, scheme):
    window(driver, 390, scheme)
    driver.get(report.as_uri())
    for fold in driver.find_elements("css selector", "summary"):
        fold.click()
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]
    assert lines(table1(driver))
    assert driver.get_log("browser") == []


def test_a_malicious_name_is_shown_as_text(page):
    assert page.title == "Records <made> up"
    assert page.find_elements("css selector", "img[src=x]") == []
    assert f"{EVIL} x=1" in page.find_element("css selector", "main").text
    assert f"{EVIL} x=1" in lines(table1(page))


def test_every_control_has_a_name(page):
    unnamed = page.execute_script("""
        return [...document.querySelectorAll("select, input, button, [tabindex]")].filter(
            (one) => !one.closest("label") && !one.ariaLabel && !one.textContent.trim()
        ).length;
    """)
    assert unnamed == 0


def test_embedded_data_cannot_end_its_script(report):
    text = report.read_text(encoding="utf-8")
    assert "<img src=x" not in text
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    labels = [line["label"] for chart in json.loads(data)["charts"] for line in chart["series"]]
    assert f"{EVIL} x=1" in labels
    assert text.count("</script>") == 2


def test_the_page_needs_no_network(report):
    text = report.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    assert "default-src 'none'" in text
    # The name of the SVG dialect is the only address, and nothing is fetched from it.
    assert set(re.findall(r"https?://[^\"'\s<]+", text)) == {"http://www.w3.org/2000/svg"}


def test_records_without_an_epoch_make_a_page(tmp_path, driver):
    write(tmp_path, [], end=None, epochs=3)
    write(tmp_path, [], end=None, epochs=3, experiment="figure3a")
    report = write_report(findings(tmp_path), tmp_path / "report.html")
    driver.get(report.as_uri())
    assert "epoch 0 of 3" in driver.find_element("tag name", "main").text
    assert driver.get_log("browser") == []
