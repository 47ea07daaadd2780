"""Records → everything there is to look at: tables, plots and the page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cgqbench.analysis.findings import findings
from cgqbench.output.answers import answers
from cgqbench.output.figures import every_figure
from cgqbench.output.markdown import markdown_table
from cgqbench.output.page.report import write_report
from cgqbench.output.results_table import results_tables
from cgqbench.output.terminal import terminal_table


def write_outcome(folder: Path, destination: Path, console: Console) -> None:
    """Print the tables of the records below `folder`; write table.md, plots and report.html.

    The last line printed says where to look.
    """
    found = findings(folder)
    results = list(results_tables(found.comparisons).values())
    answered = answers(found.comparisons)
    for table in (*results, *answered):
        console.print(terminal_table(table))
    page = write_report(found, destination / "report.html")
    if results:
        text = "\n".join(map(markdown_table, (*answered, *results)))
        (destination / "table.md").write_text(text, encoding="utf-8")
    plots = every_figure(found, destination / "plots")
    verb = "plot is" if len(plots) == 1 else "plots are"
    drawn = f"; {len(plots)} {verb} in {destination / 'plots'}" if plots else ""
    console.print(f"Look at {page} in a browser{drawn}.", soft_wrap=True, highlight=False)
