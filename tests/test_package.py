"""What the package promises as a whole."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import cgq

SOURCE = Path(inspect.getfile(cgq)).parent


# What a host's own file may import; nothing else of the package imports that file.
HOSTS = {
    "lightning.py": {"lightning"},
    "lightning_passes.py": {"lightning"},
    "lightning_strategy.py": {"lightning"},
    "step_monitor.py": {"lightning"},
    "silent.py": {"lightning", "torchmetrics"},
    "huggingface.py": {"accelerate", "transformers"},
    "skorch.py": {"skorch"},
    "timm.py": {"timm"},
}


def test_cgq_imports_torch_and_the_standard_library_only() -> None:
    everywhere = {"cgq", "torch"} | set(sys.stdlib_module_names)
    for file in SOURCE.rglob("*.py"):
        allowed = everywhere | HOSTS.get(file.name, set())
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            assert {name.split(".")[0] for name in names} <= allowed, file


def test_import_is_silent_and_leaves_optional_parts_alone() -> None:
    others = {"cgqbench", "matplotlib"}.union(*HOSTS.values())
    code = f"import cgq, sys; print({others!r} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert (run.stdout, run.stderr) == ("set()\n", "")


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
