"""Measure the house: how much code there is, and how much of it a step passes through.

    PYTHONPATH=TREE/src python tools/house.py            # a table; Python 3.11 or newer
    PYTHONPATH=TREE/src python tools/house.py --json     # the same, with the names

How it counts:

- Hosts are `cgq.accelerate`, `huggingface`, `lightning`, `skorch` and `timm`, what is below
  `cgq/hosts`, and what they import that `cgq` itself does not. All else is `cgq` without hosts.
- Lines of code hold a token: blank lines, comments and the docstrings of modules, classes and
  functions are no code. Strings below attributes are.
- A step is `step(closure)` of an MLP on the CPU, the first of its kind after 50 others; CGQ and
  LineSearch(AdamW) search a tenth of their batches. Its files are those of `cgq` of which a
  function runs, its classes those of `cgq` that define a method that runs; "with records": also
  those of which only generated or inherited code runs, such as a NamedTuple's constructor.
- Host/device tests are names that end in `on_host` and calls `isinstance(…, Tensor)`, in `cgq`
  without hosts; "asked otherwise" are other ways to the same answer, so that none hides there:
  `is_host`, `is_tensor`, `is_cpu`, `is_cuda`, `device.type`, `case Tensor()`.
- Modules that `cgqbench` imports are those of `cgq` other than itself and the public hosts;
  "names" are those it takes from `cgq` that are not in `cgq.__all__`.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

import cgq

ROOT = Path(cgq.__file__).parent
PUBLIC_HOSTS = ("accelerate", "huggingface", "lightning", "skorch", "timm")
WARM_UP = 50
PATIENCE = 2000
"""Steps within which both kinds should have come."""
NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
OTHERWISE = ("is_host", "is_tensor", "is_cpu", "is_cuda")


def modules_of(folder: Path, package: str) -> dict[str, Path]:
    """The modules below a package's folder, by their full names."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def imports(module: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The known modules that one imports, anywhere in it."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            origin = ".".join(filter(None, (above, node.module)))
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                if origin in known:
                    yield inner if inner in known else origin


def is_host(module: str) -> bool:
    """Whether a module's name or place says that it is for a host."""
    return module.split(".")[1:2] in [[name] for name in (*PUBLIC_HOSTS, "hosts")]


def without_hosts(known: dict[str, Path]) -> dict[str, Path]:
    """The modules that are not for hosts only."""

    def reached(start: list[str], forbidden: Callable[[str], bool]) -> set[str]:
        seen: set[str] = set()
        while start:
            module = start.pop()
            if module not in seen and not forbidden(module):
                seen.add(module)
                start.extend(imports(module, known[module], known))
                if "." in module:  # which its package's own file is run before
                    start.append(module.rpartition(".")[0])
        return seen

    own = reached([cgq.__name__], is_host)
    hosts = reached([module for module in known if is_host(module)], own.__contains__)
    return {module: path for module, path in known.items() if module not in hosts}


def code_lines(source: str) -> int:
    """How many lines hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            text = node.body[0]
            lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def device_tests(source: str) -> tuple[int, int]:
    """How often a source asks where numbers are, in the counted ways and in others."""
    counted = otherwise = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            counted += name.endswith("on_host")
            otherwise += name in OTHERWISE
            otherwise += name == "type" and ast.unparse(node).endswith("device.type")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            counted += "Tensor" in ast.unparse(node.args[1])
        elif isinstance(node, ast.MatchClass):
            otherwise += "Tensor" in ast.unparse(node.cls)
    return counted, otherwise


@dataclass
class Passed:
    """What a step passes through; a profiling function."""

    files: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)
    records: set[str] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call."""
        if event != "call":
            return
        code = frame.f_code
        path = Path(code.co_filename)
        if path.is_relative_to(ROOT):
            self.files.add(path.relative_to(ROOT).as_posix())
            owner = code.co_qualname.split(".<locals>")[0].rpartition(".")[0]  # type: ignore[attr-defined]
            if owner:
                self.classes.add(owner)
        elif code.co_argcount and code.co_varnames[0] in ("self", "cls", "_cls"):
            first = frame.f_locals.get(code.co_varnames[0])
            made = first if isinstance(first, type) else type(first)
            if made.__module__.split(".")[0] == cgq.__name__:
                self.records.add(made.__qualname__)

    def named(self) -> dict[str, list[str]]:
        """The names, in order."""
        return {
            "files": sorted(self.files),
            "classes": sorted(self.classes),
            "classes with records": sorted(self.classes | self.records),
        }


def steps(make: Callable[[nn.Module], Any]) -> dict[str, dict[str, list[str]]]:
    """What an unsearched and a searched step pass through."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    inputs, targets = torch.randn(32, 8), torch.randint(3, (32,))
    optimizer = make(model)

    def closure() -> Tensor:
        return nn.functional.cross_entropy(model(inputs), targets)

    for _ in range(WARM_UP):
        optimizer.step(closure)
    found: dict[str, dict[str, list[str]]] = {}
    for _ in range(PATIENCE):
        passed = Passed()
        sys.setprofile(passed)
        try:
            optimizer.step(closure)
        finally:
            sys.setprofile(None)
        found.setdefault(
            "unsearched" if optimizer.last_search is None else "searched", passed.named()
        )
        if len(found) == 2:
            return dict(sorted(found.items(), reverse=True))
    raise RuntimeError(f"{type(optimizer).__name__} took only {', '.join(found)} steps.")


def line_search(model: nn.Module) -> cgq.LineSearch:
    """LineSearch around AdamW."""
    return cgq.LineSearch(torch.optim.AdamW(model.parameters()), search_prob=0.1)


def imported_by_bench(known: dict[str, Path]) -> tuple[list[str], list[str]]:
    """The modules of `cgq` that `cgqbench` imports, and the names that are not public."""
    spec = find_spec("cgqbench")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("There is no package cgqbench. Add it to PYTHONPATH.")
    bench = modules_of(Path(spec.submodule_search_locations[0]), "cgqbench")
    public = {cgq.__name__, *(f"{cgq.__name__}.{host}" for host in PUBLIC_HOSTS)}
    modules = {found for item in bench.items() for found in imports(*item, known)} - public
    names = {
        alias.name
        for path in bench.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == cgq.__name__
        for alias in node.names
        if alias.name not in cgq.__all__ and f"{cgq.__name__}.{alias.name}" not in known
    }
    return sorted(modules), sorted(names)


def measured() -> dict[str, Any]:
    """Everything, by what the table calls it; lists of names where names are counted."""
    known = modules_of(ROOT, cgq.__name__)
    own = {module: path.read_text() for module, path in without_hosts(known).items()}
    tests = {module: device_tests(source) for module, source in own.items()}
    modules, names = imported_by_bench(known)
    rows: dict[str, Any] = {
        "lines of code, cgq without hosts": sum(map(code_lines, own.values())),
        "lines of code, all of cgq": sum(code_lines(path.read_text()) for path in known.values()),
        "lines of text, cgq without hosts": sum(len(text.splitlines()) for text in own.values()),
        "files, cgq without hosts": sorted(own),
        "files, hosts": sorted(known.keys() - own.keys()),
    }
    for optimizer, make in (
        ("CGQ", lambda model: cgq.CGQ(model.parameters(), search_prob=0.1)),
        ("LineSearch(AdamW)", line_search),
    ):
        for kind, passed in steps(make).items():
            for what, members in passed.items():
                rows[f"{optimizer}, {kind} step: {what}"] = members
    return rows | {
        "host/device tests": sum(counted for counted, _ in tests.values()),
        "host/device, asked otherwise": sum(otherwise for _, otherwise in tests.values()),
        "modules of cgq that cgqbench imports": modules,
        "names of cgq not public that cgqbench imports": names,
    }


def main() -> None:
    """Print the table, or everything as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="with the names of what is counted")
    as_json = parser.parse_args().json
    print(f"measuring {ROOT}", file=sys.stderr)
    rows = measured()
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    width = max(map(len, rows))
    for row, value in rows.items():
        print(f"{row:{width}}  {len(value) if isinstance(value, list) else value:6,}")


if __name__ == "__main__":
    main()
