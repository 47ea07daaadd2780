"""The documentation site: made without a warning, whole, and good to look at offline.

One test, because the site takes ten seconds to make and the suite runs in several processes.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from browser import started, window
from pages import ROOT

import cgq
from cgq import evaluation

HOSTS = {
    "cgq.lightning.CGQ",
    "cgq.lightning.LineSearch",
    "cgq.lightning.StepMonitor",
    "cgq.huggingface.CGQTrainer",
    "cgq.skorch.CGQNet",
    "cgq.timm.register",
}
EVALUATION = {f"cgq.evaluation.{name}" for name in evaluation.__all__ if name != "rng"}  # a module


def test_the_site(tmp_path: Path) -> None:
    site = tmp_path / "site"
    made = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", ROOT / "docs", site],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "")
    assert sum(len(local_links(page)) for page in site.glob("*.html")) > 300
    assert dead_links(site) == []
    assert taken_from_the_network(site) == []
    public = {f"cgq.{name}" for name in cgq.__all__} | HOSTS | EVALUATION
    assert public <= values(site / "api.html", "id")
    for name in ("api.html", "how_it_works.html"):
        text = (site / name).read_text()
        assert "<math" in text
        assert not re.search(r"\\(frac|min|max|quad)", text), "a formula was left as it is written"
    assert badly_shown_on_a_phone(site, tmp_path / "browser") == {}


def values(page: Path, attribute: str) -> set[str]:
    return set(map(html.unescape, re.findall(rf'\b{attribute}="([^"]+)"', page.read_text())))


def local_links(page: Path) -> set[str]:
    return {link for link in values(page, "href") | values(page, "src") if "://" not in link}


def dead_links(site: Path) -> list[str]:
    dead = []
    for page in site.glob("*.html"):
        for link in local_links(page):
            parts = urlsplit(link)
            target = site / unquote(parts.path) if parts.path else page
            is_page = target.suffix == ".html" and target.is_file()
            if not target.is_file() or (
                parts.fragment and is_page and unquote(parts.fragment) not in values(target, "id")
            ):
                dead.append(f"{page.name}: {link}")
    return dead


def taken_from_the_network(site: Path) -> list[str]:
    taken = []
    for page in site.glob("*.html"):
        loading = re.findall(r"<(?:link|script|img|iframe|source)\b[^>]*>", page.read_text())
        taken += [f"{page.name}: {tag}" for tag in loading if "//" in tag]
    for style in site.rglob("*.css"):
        if re.search(r"url\([\"']?(?:https?:)?//|@import", style.read_text()):
            taken.append(style.name)
    return taken


def badly_shown_on_a_phone(site: Path, folder: Path) -> dict[str, object]:
    """Pages that must be scrolled sideways, or that have something to say to the console."""
    bad = {}
    with started(folder) as driver:
        window(driver, 390)
        for page in site.glob("*.html"):
            driver.get(page.as_uri())
            width = driver.execute_script("return document.documentElement.scrollWidth")
            found = (width, driver.get_log("browser"))
            if found != (390, []):
                bad[page.name] = found
    return bad
