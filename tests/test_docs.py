"""Every `cgq` command in the documentation is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from cgqbench.cli import app
from cgqbench.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[str]:
    text = "\n".join(page.read_text() for page in PAGES)
    indented = re.findall(r"^    (cgq [^#\n]+)", text, re.MULTILINE)
    inline = re.findall(r"`(cgq [^`]+)`", text)
    return sorted({command.strip() for command in (*indented, *inline) if "NAME" not in command})


@pytest.mark.parametrize("command", commands())
def test_a_documented_command_is_accepted(command):
    words = shlex.split(command)[1:]
    parent = None
    known = typer.main.get_command(app)
    while hasattr(known, "commands"):
        parent = known
        known = parent.commands[words.pop(0)]
    context = known.make_context(known.name, words)
    assert context.command is known


def test_there_are_commands_to_test():
    assert len(commands()) >= 8


def test_every_method_is_documented():
    page = (ROOT / "docs" / "experiments.md").read_text()
    assert [name for name in METHODS if f"`{name}`" not in page] == []
