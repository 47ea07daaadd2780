"""Records → one self-contained HTML page that needs no network and nothing installed."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from jinja2 import Environment, PackageLoader, StrictUndefined

from cgqbench.analysis.comparison import Comparison, several
from cgqbench.analysis.costs import Cost, costs, machine_of
from cgqbench.analysis.findings import Findings
from cgqbench.output.answers import answers
from cgqbench.output.figures import ABLATIONS, ablation
from cgqbench.output.page.charts import Chart, chart, landscapes
from cgqbench.output.palette import Style, styles
from cgqbench.output.results_table import results_tables
from cgqbench.output.table import Column, Table, TableCell, plain_row
from cgqbench.records.problem import label_of
from cgqbench.records.record import Line

SETTINGS = (
    *(Column("Method"), Column("Settings")),
    *(Column(name, numbers=True) for name in ("Seeds", "Epochs", "Batch", "Parameters")),
)
MOST_LINES = 24
"""A chart with more lines than this tells nobody anything: its table and figure do."""


@dataclass(frozen=True)
class Part:
    """One problem of a section; its chart is a place in the page's data."""

    title: str
    chart: int | None
    methods: int
    costs: list[Cost]
    colours: dict[str, str]
    picture: str | None
    settings: Table


@dataclass(frozen=True)
class Section:
    """One experiment."""

    ablation: bool
    table: Table
    parts: list[Part]


@dataclass(frozen=True)
class Origin:
    """Where numbers come from: what holds for many runs is said once."""

    machines: list[str]
    versions: list[str]
    commands: list[str]


def write_report(
    found: Findings, destination: Path, title: str = "Optimizers side by side"
) -> Path:
    """Write everything that the records say as one HTML file; its path."""
    style = styles(run.header["method"] for run in found.runs)
    charts: list[Chart] = []
    sections = list(_sections(found.comparisons, style, charts))
    page = _environment().get_template("page.html")
    content = page.render(
        title=title,
        answers=answers(found.comparisons),
        sections=sections,
        runs=several(len(found.runs), "run") if found.runs else "",
        origin=_origin(found),
        searches=[
            _settings(f"Search lines: {one.title}", [(label_of(one.header), [one.header])])
            for one in found.searches
        ],
        data={"charts": charts, "landscapes": landscapes(found.searches)},
    )
    destination.parent.mkdir(parents=True, exist_ok=True)
    destination.write_text(content, encoding="utf-8")
    return destination


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("cgqbench.output", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _sections(
    compared: Sequence[Comparison], style: dict[str, Style], charts: list[Chart]
) -> Iterator[Section]:
    tables = results_tables(compared)
    for experiment in sorted(tables, key=lambda name: name in ABLATIONS):
        table = tables[experiment]
        parts = [
            _part(comparison, table.title, style, charts)
            for comparison in compared
            if comparison.problem.experiment == experiment
        ]
        yield Section(experiment in ABLATIONS, table, parts)


def _part(
    comparison: Comparison, heading: str, style: dict[str, Style], charts: list[Chart]
) -> Part:
    methods = comparison.methods
    place = None
    if len(methods) <= MOST_LINES:
        place = len(charts)
        charts.append(chart(comparison, style))
    return Part(
        comparison.title,
        place,
        len(methods),
        costs(comparison),
        {method: style[method].colour for method in methods},
        _picture(comparison),
        _settings(
            f"{heading}: {comparison.title}",
            [
                (comparison.labels[method], [run.header for run in group])
                for method, group in methods.items()
            ],
        ),
    )


def _picture(comparison: Comparison) -> str | None:
    """The figure of an ablation, as an address that holds the picture itself."""
    draw = ablation(comparison)
    if draw is None:
        return None
    with TemporaryDirectory() as folder:
        path = draw(comparison, Path(folder) / "figure.png")
        return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _settings(title: str, methods: Sequence[tuple[str, list[Line]]]) -> Table:
    """How each method was run, from its label and the headers of its runs."""
    return Table(title, SETTINGS, tuple(_setting(*method) for method in methods))


def _setting(label: str, headers: list[Line]) -> tuple[TableCell, ...]:
    header = headers[0]
    settings = header.get("settings") or {}
    return plain_row(
        label,
        ", ".join(f"{name}={value}" for name, value in settings.items()) or "none",
        ", ".join(str(header["seed"]) for header in headers),
        header["epochs"],
        header["batch_size"],
        f"{header['parameters']:,}" if header.get("parameters") else "unknown",
    )


def _origin(found: Findings) -> Origin:
    headers = [run.header for run in found.runs] + [one.header for one in found.searches]
    versions = [header.get("versions") or {} for header in headers]
    rows = (
        [machine_of(header) for header in headers],
        [", ".join(f"{name} {text}" for name, text in named.items()) for named in versions],
        [str(header.get("command") or "") for header in headers],
    )
    return Origin(*(list(filter(None, dict.fromkeys(row))) for row in rows))
