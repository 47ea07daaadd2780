"""Records → one self-contained HTML page that needs no network and nothing installed."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from jinja2 import Environment, PackageLoader, StrictUndefined

from cgqbench.analysis.comparison import Comparison, several
from cgqbench.analysis.costs import Cost, costs, machine_of, three_digits
from cgqbench.analysis.findings import Findings
from cgqbench.analysis.verdicts import begun
from cgqbench.output.answers import answers
from cgqbench.output.beside_paper import OVERVIEW
from cgqbench.output.figures import ABLATIONS, PROFILE, TOGETHER, ablation
from cgqbench.output.figures.paper_map import paper_map
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

    comparison: Comparison
    chart: int | None
    costs: list[Cost]
    picture: str | None
    settings: Table


@dataclass(frozen=True)
class Section:
    """One experiment."""

    ablation: bool
    table: Table
    parts: list[Part]
    picture: str | None = None
    """The figure of all its problems together, where it has one."""


def write_report(
    found: Findings, destination: Path, title: str = "Optimizers side by side"
) -> Path:
    """Write everything that the records say as one HTML file; its path."""
    style = styles(run.header["method"] for run in found.runs)
    charts: list[Chart] = []
    environment = Environment(
        loader=PackageLoader("cgqbench.output", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["three_digits"] = three_digits
    compared = found.comparisons
    pictures = {OVERVIEW: _embedded(partial(paper_map, compared))} if begun(compared) else {}
    content = environment.get_template("page.html").render(
        title=title,
        answers=answers(compared),
        pictures=pictures,
        sections=list(_sections(compared, style, charts)),
        style=style,
        runs=several(len(found.runs), "run") if found.runs else "",
        origin=_origin(found),
        searches=[
            Table(f"Search lines: {one.title}", SETTINGS, (_setting(label_of(header), [header]),))
            for one in found.searches
            for header in [one.header]
        ],
        data={"charts": charts, "landscapes": landscapes(found.searches)},
    )
    destination.parent.mkdir(parents=True, exist_ok=True)
    destination.write_text(content, encoding="utf-8")
    return destination


def _sections(
    compared: Sequence[Comparison], style: dict[str, Style], charts: list[Chart]
) -> Iterator[Section]:
    tables = results_tables(compared)
    for experiment in sorted(tables, key=lambda name: name in ABLATIONS):
        table = tables[experiment]
        members = [one for one in compared if one.problem.experiment == experiment]
        parts = [_part(comparison, table.title, style, charts) for comparison in members]
        draw = TOGETHER.get(experiment, {}).get(PROFILE)
        picture = None if draw is None else _embedded(partial(draw, members))
        yield Section(experiment in ABLATIONS, table, parts, picture)


def _told_apart(methods: Iterable[str], style: dict[str, Style]) -> dict[str, Style]:
    """The page's styles of these methods; others where two of them would look the same."""
    shared = {method: style[method] for method in methods}
    return shared if len({*shared.values()}) == len(shared) else styles(shared)


def _part(
    comparison: Comparison, heading: str, style: dict[str, Style], charts: list[Chart]
) -> Part:
    place = None
    if len(comparison.methods) <= MOST_LINES:
        place = len(charts)
        charts.append(chart(comparison, _told_apart(comparison.methods, style)))
    rows = [
        _setting(comparison.labels[method], [run.header for run in group])
        for method, group in comparison.methods.items()
    ]
    settings = Table(f"{heading}: {comparison.title}", SETTINGS, tuple(rows))
    return Part(comparison, place, costs(comparison), _picture(comparison), settings)


def _picture(comparison: Comparison) -> str | None:
    """The figure of an ablation, as an address that holds the picture itself."""
    draw = ablation(comparison)
    return None if draw is None else _embedded(partial(draw, comparison))


def _embedded(draw: Callable[[Path], Path]) -> str:
    with TemporaryDirectory() as folder:
        path = draw(Path(folder) / "figure.png")
        return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _setting(label: str, headers: list[Line]) -> tuple[TableCell, ...]:
    """How a method was run, from the headers of its runs."""
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


def _origin(found: Findings) -> dict[str, list[str]]:
    """Where numbers come from: what holds for many runs is said once."""
    headers = [run.header for run in found.runs] + [one.header for one in found.searches]
    versions = [header.get("versions") or {} for header in headers]
    rows = {
        "machines": [machine_of(header) for header in headers],
        "versions": [", ".join(f"{name} {text}" for name, text in one.items()) for one in versions],
        "commands": [str(header.get("command") or "") for header in headers],
    }
    return {name: list(filter(None, dict.fromkeys(row))) for name, row in rows.items()}
