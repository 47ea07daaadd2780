"""Every code block of the README and of the site runs: those of a page in order, in one session."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState, GradientState
from pages import PAGES, README, blocks, name, prose

# Shown, but not run: what is typed into a terminal, and plain text. Directives are Sphinx's.
NOT_RUN = {"console", "text"}
DIRECTIVES = {"{include}", "{toctree}", "{eval-rst}"}

# What the hosts warn of by themselves.
LIGHTNING = (
    "ignore:.*treespec, LeafSpec.*:FutureWarning",  # Lightning 2.6 with torch 2.13
    "ignore:.*does not have many workers.*",
    "ignore:The number of training batches .* is smaller than the logging interval",
    "ignore:Checkpoint directory .* exists and is not empty",
)
COMPILE = ("ignore:`torch.jit.* is deprecated:DeprecationWarning",)  # torch of itself
WARNINGS = {"docs/lightning.md": LIGHTNING, "docs/compile.md": COMPILE}

# What development does not install: timm brings torchvision, and that a torch of its own.
ONLY_WITH = {"docs/timm.md": "timm"}

# What runs on two ranks: tests/two_ranks.py runs it there.
ELSEWHERE = {"docs/distributed.md"}


def pages_with_code() -> list[object]:
    marked = []
    for page in PAGES:
        if name(page) not in ELSEWHERE and any(
            block.language == "python" for block in blocks(page)
        ):
            filters = WARNINGS.get(name(page), ())
            marks = [pytest.mark.filterwarnings(each) for each in filters]
            marked.append(pytest.param(page, id=name(page), marks=marks))
    return marked


@pytest.fixture
def without_accelerator() -> Iterator[None]:
    """Accelerate keeps its settings for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.mark.usefixtures("without_accelerator", "without_onednn")
@pytest.mark.parametrize("page", pages_with_code())
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name(page) in ONLY_WITH:
        pytest.importorskip(ONLY_WITH[name(page)], exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    session: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        if block.language == "python":
            # Empty lines before it, so that an error names the line of the page.
            code = "\n" * (block.line - 1) + block.text
            exec(compile(code, name(page), "exec"), session)
    assert len(session) > 2, "the blocks have defined nothing"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_that_does_not_run_is_marked(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= {"python", *NOT_RUN, *DIRECTIVES}
    for indented in re.findall(r"(?<=\n\n)(?:    .*\n)+", prose(page)):
        with pytest.raises(SyntaxError):  # commands and formulas; Python belongs between fences
            ast.parse(re.sub("^    ", "", indented, flags=re.MULTILINE))


def test_first_example_comes_early() -> None:
    assert next(blocks(README)).language == "python"
    assert next(blocks(README)).line < 30
