"""Commands, methods and options in the documentation are those that there are."""

from __future__ import annotations

import ast
import inspect
import re
import shlex

import pytest
import typer
from pages import PAGES, ROOT

from cgq import CGQ
from cgqbench.cli import app
from cgqbench.methods import METHODS


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
    if words == ["--version"]:
        return  # it is no command
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


def test_options_and_defaults_are_those_of_the_signature():
    page = (ROOT / "docs" / "options.md").read_text()
    table = page.partition("# Options\n")[2].partition("\n\nWhat follows")[0]
    rows = re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \|", table, re.MULTILINE)
    parameters = list(inspect.signature(CGQ).parameters.values())[1:]
    assert [name for name, _ in rows] == [parameter.name for parameter in parameters]
    for (name, shown), parameter in zip(rows, parameters, strict=True):
        default = parameter.default
        expected = f"cgq.{default.__name__}" if callable(default) else default
        assert (shown if callable(default) else ast.literal_eval(shown.strip())) == expected, name


def test_every_option_is_explained():
    page = (ROOT / "docs" / "options.md").read_text()
    told = page.partition("What follows")[2]
    names = list(inspect.signature(CGQ).parameters)[1:]
    assert [name for name in names if f"`{name}`" not in told] == []


# A file, and perhaps what is in it: `rules/when_to_search.py`, `coin`.
PLACE = re.compile(r"`((?:\w+/)*\w+\.py)`(?:, `([\w.]+)`)?")


def places() -> list[tuple[str, str]]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    return sorted(set(PLACE.findall(page)))


@pytest.mark.parametrize(("file", "definition"), places())
def test_what_the_architecture_names_is_there(file, definition):
    source = ROOT / "src" / ("" if file.startswith("cgqbench/") else "cgq")
    code = (source / file).read_text()
    for name in filter(None, definition.split(".")):
        assert re.search(rf"^ *(def |class )?{name}\b *[:=(\[]", code, re.MULTILINE), name


def test_there_are_places_to_test():
    assert len(places()) >= 50
