"""Records → one self-contained HTML page that needs no network and nothing installed."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from jinja2 import Environment, PackageLoader, StrictUndefined

from cgqbench.curves import median_epoch
from cgqbench.experiments import EXPERIMENTS
from cgqbench.figures import ABLATIONS
from cgqbench.page_data import Chart, chart, landscapes
from cgqbench.palette import Style, styles
from cgqbench.record import Line, RecordError, Run, runs
from cgqbench.searches import Searches, searches
from cgqbench.summary import Problem, by_problem, label_of, problem_of
from cgqbench.tables import Grid, caption, grids

HEADINGS = {
    "compare": "Comparison",
    **{name: experiment.title for name, experiment in EXPERIMENTS.items()},
}
MOST_LINES = 24
"""A chart with more lines than this tells nobody anything: its table and figure do."""


@dataclass(frozen=True)
class Bar:
    """What an epoch of a method costs."""

    label: str
    colour: str
    seconds: float
    share: float
    """Of the longest bar."""
    ratio: float | None
    """To SGD."""


@dataclass(frozen=True)
class Fact:
    """How a method was run."""

    label: str
    settings: str
    seeds: str
    epochs: int
    batch_size: int
    parameters: str


@dataclass(frozen=True)
class Part:
    """One problem of a section: its chart (by its place in the page's data) and its facts."""

    title: str
    chart: int | None
    bars: list[Bar]
    picture: str | None
    facts: list[Fact]


@dataclass(frozen=True)
class Section:
    """One experiment."""

    heading: str
    ablation: bool
    grid: Grid
    caption: str
    parts: list[Part]


@dataclass(frozen=True)
class Origin:
    """Where numbers come from: what holds for many runs is said once."""

    machines: list[str]
    versions: list[str]
    commands: list[str]


def write_report(folder: Path, destination: Path, title: str = "Optimizers side by side") -> Path:
    """Write everything that the records below `folder` say as one HTML file; its path."""
    found, lines = runs(folder), searches(folder)
    if not found and not lines:
        raise RecordError(
            f"{folder} holds no records. Make some with `cgq compare --out {folder}`, or name the "
            "folder that a run wrote to."
        )
    style = styles(run.header["method"] for run in found)
    charts: list[Chart] = []
    sections = list(_sections(found, style, charts))
    page = _environment().get_template("page.html")
    content = page.render(
        title=title,
        sections=sections,
        runs=len(found),
        origin=_origin(found, lines),
        search_facts=[(problem_of(one.header).title, _fact([one.header])) for one in lines],
        data={"charts": charts, "landscapes": landscapes(lines)},
    )
    destination.parent.mkdir(parents=True, exist_ok=True)
    destination.write_text(content, encoding="utf-8")
    return destination


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("cgqbench", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _sections(
    found: Sequence[Run], style: dict[str, Style], charts: list[Chart]
) -> Iterator[Section]:
    problems = by_problem(found)
    for grid in sorted(grids(found), key=lambda grid: grid.experiment in ABLATIONS):
        parts = []
        for problem in grid.problems:
            methods = problems[problem]
            place = None
            if len(methods) <= MOST_LINES:
                place = len(charts)
                charts.append(chart(problem, methods, style))
            bars = _bars(methods, style)
            picture = _picture(problem, methods)
            facts = [_fact([run.header for run in group]) for group in methods.values()]
            parts.append(Part(problem.title, place, bars, picture, facts))
        heading = HEADINGS.get(grid.experiment, grid.experiment)
        ablation = grid.experiment in ABLATIONS
        yield Section(heading, ablation, grid, caption(grid), parts)


def _bars(methods: dict[str, list[Run]], style: dict[str, Style]) -> list[Bar]:
    medians = {method: median_epoch(group) for method, group in methods.items()}
    times = {method: value for method, value in medians.items() if value is not None}
    longest = max(times.values(), default=0.0)
    unit = times.get("sgd")
    return [
        Bar(
            label_of(methods[method][0].header),
            style[method].colour,
            seconds,
            seconds / longest if longest else 0.0,
            seconds / unit if unit else None,
        )
        for method, seconds in times.items()
    ]


def _picture(problem: Problem, methods: dict[str, list[Run]]) -> str | None:
    """The figure of an ablation, as an address that holds the picture itself."""
    group = [run for found in methods.values() for run in found]
    if problem.experiment not in ABLATIONS or not any(run.epochs for run in group):
        return None
    with TemporaryDirectory() as folder:
        path = ABLATIONS[problem.experiment](group, Path(folder) / "figure.png")
        return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _fact(headers: list[Line]) -> Fact:
    settings = headers[0].get("settings") or {}
    parameters = headers[0].get("parameters")
    return Fact(
        label_of(headers[0]),
        ", ".join(f"{name}={value}" for name, value in settings.items()) or "none",
        ", ".join(str(header["seed"]) for header in headers),
        headers[0]["epochs"],
        headers[0]["batch_size"],
        f"{parameters:,}" if parameters else "unknown",
    )


def _origin(found: Sequence[Run], lines: Sequence[Searches]) -> Origin:
    headers = [run.header for run in found] + [one.header for one in lines]
    machines, versions, commands = [], [], []
    for header in headers:
        threads = header.get("threads")
        count = f"{threads} thread{'s' * (threads != 1)}" if threads else None
        words = [header.get("hardware"), header.get("device"), count]
        machines.append(", ".join(filter(None, words)))
        named = header.get("versions") or {}
        versions.append(", ".join(f"{name} {version}" for name, version in named.items()))
        commands.append(str(header.get("command") or ""))
    return Origin(
        *(list(filter(None, dict.fromkeys(row))) for row in (machines, versions, commands))
    )
