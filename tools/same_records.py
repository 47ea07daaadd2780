"""Show that a change of the source changes no result: record before, record after, compare.

    PYTHONPATH=BEFORE/src python tools/same_records.py record out/before
    PYTHONPATH=AFTER/src python tools/same_records.py record out/after
    python tools/same_records.py compare out/before out/after

`record` trains with `cgq compare` on the CPU, one thread, one epoch: every method of `cgq methods`
with the MLP on MNIST, and `search` with the small GPT, whose epoch of 8,000 windows is 50 steps of
160. The seed is 0, the only one that the command runs alone. All take a quarter of an hour.

`compare` compares the records line by line and byte by byte, in the order of their keys, without
`command`, `task` (a path) and `versions` of the first line; hardware, settings and the checksum of
the text remain. Seconds are in files of their own (`*.times.jsonl`), which are not read. The status
is 1 if anything differs, is unfinished or is missing on one side.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DROPPED = ("command", "task", "versions")
"""Keys of a record's first line that may differ between two runs of one cell."""
APART = (".times.jsonl", ".landscape.jsonl")
"""Files beside the records that are none themselves."""
MLP = ("--dataset", "mnist", "--network", "mlp")
GPT = ("--dataset", "stdlib", "--network", "gpt1m", "--batch-size", "160")
GPT_METHOD = "search"

Line = dict[str, Any]


def record(out: Path, only: Sequence[str], networks: Sequence[str], jobs: int, resume: bool) -> int:
    """Run the cells; the status of the first command that failed, or 0."""
    if not resume and _records(out):
        # The command would take finished cells for its own, though the source may be another now.
        sys.exit(f"{out} holds records already. Add --resume, or choose another folder.")
    methods = {
        "mlp": only or known_methods(),
        "gpt1m": [method for method in only or [GPT_METHOD] if _name(method) == GPT_METHOD],
    }
    for network, problem in (("mlp", MLP), ("gpt1m", GPT)):
        if network not in networks or not methods[network]:
            continue
        chosen = [word for method in methods[network] for word in ("--method", method)]
        budget = ["--epochs", "1", "--seeds", "1", "--device", "cpu", "--threads", "1"]
        run = ["--jobs", str(jobs), "--out", str(out), *(["--resume"] if resume else [])]
        status = _cgq(["compare", *problem, *chosen, *budget, *run]).returncode
        if status:
            return status
    return 0


def known_methods() -> list[str]:
    """Every method, as the command line names them."""
    table = _cgq(["methods"], capture_output=True, check=True).stdout
    names = re.findall(r"^\s*[│|]\s*(\w+)\s*[│|]", table, flags=re.MULTILINE)
    if len(names) < 4:
        sys.exit(f"No methods can be read from this table:\n{table}")
    return names


def _cgq(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    # A wide table has a line for each method; PYTHONSAFEPATH: the folder we are in is no source.
    settings = {"COLUMNS": "300", "PYTHONUTF8": "1", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "cgqbench", *arguments]
    return subprocess.run(command, env=os.environ | settings, text=True, **options)


def compare(before: Path, after: Path, only: Sequence[str], networks: Sequence[str]) -> int:
    """Print a table of the records of two folders; 1 if any differ, else 0."""
    sides = [_chosen(folder, only, networks) for folder in (before, after)]
    names = sorted({*sides[0], *sides[1]})
    if not names:
        sys.exit(f"There are no such records in {before} and {after}.")
    verdicts = [_verdict(*(side.get(name) for side in sides)) for name in names]
    width = max(map(len, names))
    for name, verdict in zip(names, verdicts, strict=True):
        print(f"{name:{width}}  {verdict or 'identical'}")
    differing = sum(map(bool, verdicts))
    print(f"{len(names)} records, {differing} differ; without the keys {', '.join(DROPPED)}")
    return int(differing > 0)


def _chosen(folder: Path, only: Sequence[str], networks: Sequence[str]) -> dict[str, Path]:
    chosen = {}
    for path in _records(folder):
        first: Line = json.loads(path.read_bytes().split(b"\n", 1)[0])
        if first["network"] in networks and (not only or first["method"] in only):
            chosen[str(path.relative_to(folder))] = path
    return chosen


def _records(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.jsonl"))
    return [path for path in found if not path.name.endswith(APART) and path.stat().st_size]


def _verdict(before: Path | None, after: Path | None) -> str:
    """The first difference of two records, in words; empty if there is none."""
    if before is None or after is None:
        return f"missing {'before' if before is None else 'after'}"
    pairs = itertools.zip_longest(before.read_bytes().splitlines(), after.read_bytes().splitlines())
    last: Line = {}
    for number, (old, new) in enumerate(pairs, 1):
        if old is None or new is None:
            return f"line {number}: missing {'before' if old is None else 'after'}"
        last = json.loads(new)
        if _kept(old) != _kept(new):
            return f"line {number}, {_first_difference(json.loads(old), last)}"
    return "" if last.get("kind") == "end" else "unfinished"


def _kept(line: bytes) -> bytes:
    """A line without what is dropped; the very bytes where nothing is."""
    content: Line = json.loads(line)
    if content.keys().isdisjoint(DROPPED):
        return line
    return json.dumps({key: content[key] for key in content if key not in DROPPED}).encode()


def _first_difference(old: Line, new: Line) -> str:
    for key in dict.fromkeys((*old, *new)):
        values = [repr(line[key]) if key in line else "missing" for line in (old, new)]
        if key not in DROPPED and values[0] != values[1]:
            return f"{key}: {' → '.join(values)}"
    return "order of the keys or spelling of the values"


def _name(method: str) -> str:
    return method.partition(":")[0]


def main() -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="train and write records")
    recording.add_argument("out", type=Path)
    recording.add_argument("--resume", action="store_true", help="keep what is there and go on")
    recording.add_argument("--jobs", type=int, default=1, help="runs at a time")
    comparing = commands.add_parser("compare", help="compare the records of two folders")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    for command in (recording, comparing):
        command.add_argument(
            "--only",
            action="append",
            metavar="METHOD",
            default=[],
            help="a method to keep, perhaps with settings; may be given several times",
        )
        command.add_argument(
            "--network", choices=("mlp", "gpt1m"), action="append", help="default: both"
        )
    given = parser.parse_args()
    networks = given.network or ["mlp", "gpt1m"]
    if given.command == "record":
        return record(given.out, given.only, networks, given.jobs, given.resume)
    return compare(given.before, given.after, given.only, networks)


if __name__ == "__main__":
    sys.exit(main())
