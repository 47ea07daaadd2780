"""The folders of cgq are layers: imports go one way; cgqbench sees only what is public."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import cgq

SOURCE = Path(cgq.__file__).parent.parent

# From the simplest idea to the hosts. A module imports its own layer and those before it.
LAYERS: list[tuple[str, ...]] = [
    ("cgq.rules",),
    ("cgq.vectors",),
    ("cgq.evaluation",),
    ("cgq.engine",),
    ("cgq.cgq", "cgq.conjugate_descent", "cgq.line_search", "cgq.average"),
    ("cgq",),
    ("cgq.hosts",),
    ("cgq.lightning", "cgq.huggingface", "cgq.skorch", "cgq.timm"),
]
PUBLIC = {"cgq", "cgq.evaluation", *LAYERS[-1]}

# What a host's own file may import besides torch; nothing else of the package may. Triton comes
# with torch for CUDA.
HOSTS = {
    "cgq.vectors.triton_kernels": {"triton"},
    "cgq.hosts.lightning": {"lightning"},
    "cgq.hosts.lightning_passes": {"lightning"},
    "cgq.hosts.lightning_strategy": {"lightning"},
    "cgq.hosts.step_monitor": {"lightning"},
    "cgq.hosts.silent": {"lightning", "torchmetrics"},
    "cgq.hosts.huggingface": {"accelerate", "transformers"},
    "cgq.hosts.skorch": {"skorch"},
    "cgq.hosts.timm": {"timm"},
}
EVERYWHERE = {"cgq", "torch"} | set(sys.stdlib_module_names)


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_of(path): path
    for package in ("cgq", "cgqbench")
    for path in sorted((SOURCE / package).rglob("*.py"))
}
OURS = [name for name in MODULES if name.partition(".")[0] == "cgq"]
BENCH = [name for name in MODULES if name.partition(".")[0] == "cgqbench"]


class Import(NamedTuple):
    """`module` is imported, or `name` from it."""

    module: str
    name: str | None
    line: int


def imports(code: str) -> Iterator[Import]:
    """What code imports, wherever in it: at the top, in a function, or for types alone."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            for alias in node.names:
                if f"{node.module}.{alias.name}" in MODULES:
                    yield Import(f"{node.module}.{alias.name}", None, node.lineno)
                else:
                    yield Import(str(node.module), alias.name, node.lineno)


IMPORTS = {name: list(imports(path.read_text())) for name, path in MODULES.items()}


def layer_of(module: str) -> int:
    found = [
        (len(prefix), number)
        for number, prefixes in enumerate(LAYERS)
        for prefix in prefixes
        if module == prefix or (prefix != "cgq" and module.startswith(prefix + "."))
    ]
    assert found, f"{module} belongs to no layer: say in LAYERS to which"
    return max(found)[1]


def told(module: str, wrong: list[Import]) -> list[str]:
    """Violations, as a failure shows them."""
    path = MODULES[module].relative_to(SOURCE)
    return [
        f"{path}:{each.line} imports {each.module}" + (f".{each.name}" if each.name else "")
        for each in wrong
    ]


def of_cgq(module: str) -> list[Import]:
    return [each for each in IMPORTS[module] if each.module.partition(".")[0] == "cgq"]


# cgq


@pytest.mark.parametrize("module", OURS)
def test_no_module_imports_a_higher_layer(module: str) -> None:
    own = layer_of(module)
    assert told(module, [each for each in of_cgq(module) if layer_of(each.module) > own]) == []


def test_every_layer_is_there() -> None:
    folders = {path.name for path in (SOURCE / "cgq").iterdir() if (path / "__init__.py").exists()}
    assert folders == {"rules", "vectors", "evaluation", "engine", "hosts"}
    assert {layer_of(module) for module in OURS} == set(range(len(LAYERS)))


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {module: {each.module for each in of_cgq(module)} - {module} for module in OURS}
    cycle: list[str] = []
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = error.args[1]
    assert cycle == []


@pytest.mark.parametrize("module", [name for name in OURS if name.startswith("cgq.rules")])
def test_rules_are_numbers_only(module: str) -> None:
    forbidden = "torch.nn", "torch.distributed", "torch.optim"
    wrong = []
    for each in IMPORTS[module]:
        whole = f"{each.module}.{each.name}" if each.name else each.module
        if any(whole == name or whole.startswith(name + ".") for name in forbidden):
            wrong.append(each)
    assert told(module, wrong) == []


@pytest.mark.parametrize("module", OURS)
def test_cgq_imports_torch_and_the_standard_library_only(module: str) -> None:
    allowed = EVERYWHERE | HOSTS.get(module, set())
    wrong = [each for each in IMPORTS[module] if each.module.partition(".")[0] not in allowed]
    assert told(module, wrong) == []


def test_every_file_of_a_host_needs_its_host() -> None:
    for module, libraries in HOSTS.items():
        found = {each.module.partition(".")[0] for each in IMPORTS[module]}
        assert found & libraries, f"{module} need not be listed"


# cgqbench


def exported(module: str) -> set[str]:
    """`__all__`, from the source: a host need not be installed."""
    for node in ast.parse(MODULES[module].read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError(f"{module} does not say what is public")


def public(each: Import) -> bool:
    """Whether the import is of something that cgq promises."""
    if each.module in PUBLIC:
        return each.name is None or each.name in exported(each.module)
    package, _, name = each.module.rpartition(".")  # a module that is exported as a name
    return package in PUBLIC and each.name is None and name in exported(package)


@pytest.mark.parametrize("module", BENCH)
def test_cgqbench_imports_public_names_of_cgq(module: str) -> None:
    assert told(module, [each for each in of_cgq(module) if not public(each)]) == []


@pytest.mark.parametrize("module", BENCH)
def test_cgqbench_asks_the_package_for_public_names(module: str) -> None:
    """As `cgq.CGQ` after `import cgq`."""
    if not any(each.module == "cgq" and each.name is None for each in IMPORTS[module]):
        return
    allowed = exported("cgq") | {"__version__"}
    path = MODULES[module]
    asked = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "cgq"
    }
    assert asked <= allowed, f"{path.relative_to(SOURCE)} uses {sorted(asked - allowed)}"


# What these tests see


def test_imports_are_seen_wherever_they_are() -> None:
    code = (
        "import cgq.engine.searched_step\n"
        "from cgq.rules import scalars\n"
        "def f():\n    from cgqbench import cli\n"
        "if TYPE_CHECKING:\n    from cgq.cgq import CGQ\n"
    )
    assert set(imports(code)) == {
        Import("cgq.engine.searched_step", None, 1),
        Import("cgq.rules.scalars", None, 2),
        Import("cgqbench.cli", None, 4),
        Import("cgq.cgq", "CGQ", 6),
    }


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("from cgq import CGQ", True),
        ("from cgq.evaluation import rng", True),
        ("from cgq.lightning import StepMonitor", True),
        ("from cgq import engine", False),
        ("from cgq.evaluation.closure import Closure", False),
        ("from cgq.hosts.lightning import CGQ", False),
        ("from cgq.evaluation import snapshots", False),
        ("import cgq.engine", False),
    ],
)
def test_what_is_public(code: str, allowed: bool) -> None:
    (found,) = imports(code)
    assert public(found) == allowed


def test_layers_are_ordered() -> None:
    order = [
        "cgq.rules.first_trial",
        "cgq.vectors.line",
        "cgq.evaluation",
        "cgq.engine.searched_step",
    ]
    order += ["cgq.line_search", "cgq", "cgq.hosts.silent", "cgq.timm"]
    assert [layer_of(name) for name in order] == list(range(8))
    with pytest.raises(AssertionError, match="belongs to no layer"):
        layer_of("cgq.elsewhere")
