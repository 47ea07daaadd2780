"""The folders of cgqbench are layers: imports go one way, and no two modules import each other."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import cgqbench

SOURCE = Path(cgqbench.__file__).parent

# What each folder may import of the others.
BELOW = {
    "tasks": set(),
    "methods": set(),
    "experiments": {"tasks", "methods"},
    "records": {"tasks", "methods", "experiments"},
    "training": {"tasks", "methods", "experiments", "records"},
    "analysis": {"tasks", "methods", "experiments", "records"},
    "output": {"tasks", "methods", "experiments", "records", "analysis"},
    "cli": {"tasks", "methods", "experiments", "records", "training", "analysis", "output"},
}


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in SOURCE.rglob("*.py")}


def imported(code: str) -> set[str]:
    """The modules of cgqbench that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in MODULES else str(node.module))
    return {name for name in found if name.partition(".")[0] == "cgqbench"}


IMPORTS = {name: imported(path.read_text()) for name, path in MODULES.items()}


def test_every_folder_is_a_layer() -> None:
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} == set(BELOW)
    files = {path.name for path in SOURCE.glob("*.py")}
    assert files == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("layer", BELOW)
def test_a_layer_imports_only_those_below(layer: str) -> None:
    wrong = {
        (name, other)
        for name, others in IMPORTS.items()
        for other in others
        if name.split(".")[1:2] == [layer] and other.split(".")[1] not in BELOW[layer] | {layer}
    }
    assert wrong == set()


def test_no_module_imports_itself_by_way_of_others() -> None:
    order = list(TopologicalSorter(IMPORTS).static_order())  # raises CycleError
    assert set(order) == set(MODULES)


def test_an_import_within_a_function_is_seen() -> None:
    code = "def f():\n    from cgqbench.cli import run\n    import cgqbench.tasks.task\n"
    assert imported(code) == {"cgqbench.cli.run", "cgqbench.tasks.task"}


@pytest.mark.parametrize("name", MODULES)
def test_a_file_is_read_in_one_sitting(name: str) -> None:
    assert len(MODULES[name].read_text().splitlines()) <= 250
