"""The pages of the documentation, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "results" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]

FENCE = re.compile(r"^ *```(\S*)[^\n]*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        yield Block(found[1], found[2], text[: found.start()].count("\n") + 2)


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def name(page: Path) -> str:
    """A page's path, for messages."""
    return str(page.relative_to(ROOT))
