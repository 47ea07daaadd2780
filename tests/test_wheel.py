"""The package as it is published: built, checked, and used where nothing but torch is installed.

One test, because it builds, and the suite runs in several processes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import venv
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

from pages import README, ROOT, blocks

NOT_SOURCE = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "out")


def run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_package(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=NOT_SOURCE)
    run(sys.executable, "-m", "build", "--no-isolation", folder=tree)
    assert sorted(path.suffix for path in (tree / "dist").iterdir()) == [".gz", ".whl"]
    (wheel,), (archive,) = (tree / "dist").glob("*.whl"), (tree / "dist").glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, archive, folder=tree)
    check_content(wheel, archive)
    check_metadata(wheel)
    check_use(wheel, tmp_path / "empty")


def check_content(wheel: Path, archive: Path) -> None:
    wanted = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    assert {"cgq/py.typed", "cgqbench/py.typed", "cgqbench/output/page/page.html"} <= wanted
    assert sum("data/mnist" in name for name in wanted) == 4
    with ZipFile(wheel) as file:
        packed = set(file.namelist())
    assert {name for name in packed if ".dist-info/" not in name} == wanted
    assert any(name.endswith("licenses/LICENSE") for name in packed)
    with tarfile.open(archive) as tar:
        sources = {name.partition("/")[2] for name in tar.getnames()}
    assert {f"src/{name}" for name in wanted} | {"LICENSE", "README.md"} <= sources
    assert not any(name.startswith(("tests", "results", "docs")) for name in sources)


def check_metadata(wheel: Path) -> None:
    with ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith("/METADATA"))
        facts = Parser().parsestr(file.read(name).decode())
    needed = [each for each in facts.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert [re.split(r"\W", each)[0] for each in needed] == ["torch"]
    assert facts["License-Expression"] == "Apache-2.0"


def check_use(wheel: Path, home: Path) -> None:
    """Run the README in an environment that holds torch, what torch needs, and the wheel."""
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", "--no-index", wheel, folder=home)
    (packages,) = home.glob("lib/python*/site-packages")
    for name in with_what_it_needs("torch"):
        for entry in top_level(name):
            (packages / entry.name).symlink_to(entry)
    code = "\n".join(block.text for block in blocks(README) if block.language == "python")
    told = run(python, "-I", "-c", f"{code}\nimport cgq; print(cgq.__file__)", folder=home)
    assert re.match(r"loss \d\.\d+, step found \d\.\d+\n", told)
    assert told.splitlines()[-1] == str(packages / "cgq" / "__init__.py")


def with_what_it_needs(name: str, known: frozenset[str] = frozenset()) -> frozenset[str]:
    """The distributions without which `name` cannot be used, and itself."""
    try:
        requirements = distribution(name).requires or []
    except PackageNotFoundError:  # needed on another platform or by another Python
        return known
    known |= {name}
    for requirement in requirements:
        needed = re.split(r"[^\w.-]", requirement)[0]
        if "extra ==" not in requirement and needed not in known:
            known = with_what_it_needs(needed, known)
    return known


def top_level(name: str) -> set[Path]:
    found = distribution(name)
    tops = {
        file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")
    }
    return {Path(str(found.locate_file(top))) for top in tops}
