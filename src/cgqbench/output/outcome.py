"""Records → everything there is to look at: tables, plots and the page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cgqbench.analysis.findings import findings
from cgqbench.output.answers import answers
from cgqbench.output.figures import every_figure
from cgqbench.output.page.report import write_report
from cgqbench.output.table_text import markdown, markdown_listing, rich_listing, rich_table
from cgqbench.output.tables import grids


def write_outcome(folder: Path, destination: Path, console: Console) -> None:
    """Print the tables of the records below `folder`; write table.md, plots and report.html.

    The last line printed says where to look.
    """
    found = findings(folder)
    tables, listings = grids(found.comparisons), answers(found.comparisons)
    for table in tables:
        console.print(rich_table(table))
    for listing in listings:
        console.print(rich_listing(listing))
    page = write_report(found, destination / "report.html")
    if tables:
        texts = [*map(markdown_listing, listings), *map(markdown, tables)]
        (destination / "table.md").write_text("\n".join(texts), encoding="utf-8")
    plots = every_figure(found, destination / "plots")
    verb = "plot is" if len(plots) == 1 else "plots are"
    drawn = f"; {len(plots)} {verb} in {destination / 'plots'}" if plots else ""
    console.print(f"Look at {page} in a browser{drawn}.", soft_wrap=True, highlight=False)
