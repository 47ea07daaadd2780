"""Records → everything there is to look at: tables, plots and the page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cgqbench.figures import every_figure
from cgqbench.record import runs
from cgqbench.report import write_report
from cgqbench.tables import grids, markdown, rich_table


def write_outcome(folder: Path, destination: Path, console: Console) -> None:
    """Print the tables of the records below `folder`; write table.md, plots and report.html.

    The last line printed says where to look.
    """
    tables = grids(runs(folder))
    plots = every_figure(folder, destination / "plots")
    page = destination / "report.html"
    write_report(folder, page)
    if tables:
        (destination / "table.md").write_text("\n".join(map(markdown, tables)), encoding="utf-8")
    for table in tables:
        console.print(rich_table(table))
    console.print(
        f"Look at {page} in a browser; {len(plots)} plots are in {plots[0].parent}.",
        soft_wrap=True,
        highlight=False,
    )
