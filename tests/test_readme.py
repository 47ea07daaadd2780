"""Every code block of the README runs, in order, in one session."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_code_blocks_run() -> None:
    text = README.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 4
    session: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), session)


def test_first_example_comes_early() -> None:
    lines = README.read_text().splitlines()
    assert lines.index("```python") < 30
