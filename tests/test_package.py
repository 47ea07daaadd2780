"""What the package promises as a whole."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

from test_layers import HOSTS

import cgq

PARTS = re.compile(r"extra == .(bench|dev|docs|hf|lightning|skorch).")


def imported(module: str, of: set[str]) -> tuple[str, str]:
    """What a fresh process prints of these modules, and whatever else, once it has the first."""
    code = f"import {module}, sys; print({of!r} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    return run.stdout, run.stderr


def test_import_is_silent_and_leaves_optional_parts_alone() -> None:
    others = {"cgqbench", "matplotlib"}.union(*HOSTS.values())
    assert imported("cgq", others) == ("set()\n", "")


def test_the_command_and_the_process_of_a_cell_start_without_what_draws() -> None:
    assert imported("cgqbench.__main__", {"matplotlib", "jinja2"}) == ("set()\n", "")


def test_signature_is_the_contract() -> None:
    parameters = inspect.signature(cgq.CGQ).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert defaults == {
        "params": inspect.Parameter.empty,
        "lr": 0.3,
        "max_relative_step": None,
        "momentum": cgq.polak_ribiere,
        "max_momentum": 0.8,
        "nesterov": False,
        "weight_decay": 0.0,
        "decoupled_weight_decay": False,
        "fit": cgq.two_point,
        "max_fits": 3,
        "probe": None,
        "search_prob": 1.0,
        "smoothing": 0.0,
        "model": None,
        "seed": 0,
        "maximize": False,
        "process_group": None,
    }
    keyword_only = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert keyword_only == list(defaults)[2:]


def test_every_public_function_has_an_example() -> None:
    for name in cgq.__all__:
        if name != "Search":  # a record; `quadratic_search` shows one
            assert ">>>" in (inspect.getdoc(getattr(cgq, name)) or ""), name


def test_what_the_tests_install_is_pinned() -> None:
    """Warnings are errors here: another version of a library may fail what did not change."""
    needs = [
        re.split(r"[;<>=\[ ]", need)[0] for need in requires("cgq") or () if PARTS.search(need)
    ]
    lines = (Path(__file__).parents[1] / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line}
    assert {"torch", "ruff", "transformers"} <= pinned
    assert not {*needs} - pinned - {"cgq"}
