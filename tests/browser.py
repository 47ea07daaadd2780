"""A real browser for the tests of the report, and what is done in it."""

import shutil
from contextlib import contextmanager

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def browser_paths():
    browsers = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, browsers)), None)
    return found, shutil.which("chromedriver")


@contextmanager
def started(folder):
    """A browser that keeps its own files in the folder; a test without one is skipped."""
    browser, chromedriver = browser_paths()
    if browser is None or chromedriver is None:
        pytest.skip("no Chromium and chromedriver on this machine (Debian: chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=chromedriver)
    running = webdriver.Chrome(options=options, service=service)
    running.set_script_timeout(120)  # for scripts that hang, not for slow machines
    try:
        yield running
    finally:
        running.quit()


def window(driver, width, scheme="light"):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def choose(chart, control, value):
    chart.find_element("css selector", f"{control} option[value='{value}']").click()


def shapes(chart, selector, names):
    """Some attributes of each shape in a chart.

    In one look: the page draws a chart again whenever its size changes, and what was found before
    is then no longer there.
    """
    script = (
        "const [chart, selector, names] = arguments;"
        "return [...chart.querySelectorAll(selector)]"
        ".map(shape => names.map(name => shape.getAttribute(name)))"
    )
    return chart.parent.execute_script(script, chart, selector, names)
