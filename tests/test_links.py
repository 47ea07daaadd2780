"""No dead links: every path and anchor named in a page exists, and addresses are well formed."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pages import PAGES, ROOT, name, prose

CONTRIBUTING = ROOT / "CONTRIBUTING.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def links(page: Path) -> list[str]:
    return LINK.findall(re.sub("`[^`]*`", "", prose(page)))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and Sphinx make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def broken(page: Path, link: str) -> str | None:
    """What is wrong with a link."""
    parts = urlsplit(link)
    if parts.scheme:
        well_formed = parts.scheme == "https" and "." in parts.netloc
        return None if well_formed else "is not an https address"
    target = (page.parent / parts.path).resolve() if parts.path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return "leads nowhere"
    if parts.fragment:
        # Of the page itself: where GitHub shows it, nothing is included.
        known = anchors(target)
        if parts.fragment not in known:
            return f"names none of the headings {sorted(known)}"
    return None


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    wrong = {link: reason for link in links(page) if (reason := broken(page, link))}
    assert wrong == {}


def test_links_are_found_and_dead_ones_noticed() -> None:
    page = ROOT / "docs" / "index.md"
    assert "../results/README.md" in links(page)
    assert broken(page, "options.md#the-ceiling") is None
    for link in (
        "nowhere.md",
        "options.md#nothing",
        "results.md#what-is-left",
        "http://example.org",
        "https://here",
    ):
        assert broken(page, link) is not None
