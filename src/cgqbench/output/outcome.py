"""Records → everything there is to look at: tables, plots and the page."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement

from cgqbench.analysis.findings import findings
from cgqbench.output.answers import answers
from cgqbench.output.figures import every_figure
from cgqbench.output.markdown import markdown_table
from cgqbench.output.page.report import write_report
from cgqbench.output.results_table import results_tables
from cgqbench.output.terminal import terminal_table

# Columns: what rich takes where there is no terminal, what we take there, and more than any table.
UNKNOWN, WIDE, ENDLESS = 80, 240, 100_000


def write_outcome(folder: Path, destination: Path, console: Console) -> None:
    """Print the tables of the records below `folder`; write table.md, plots and report.html.

    The first of the file is the last that is printed, where a terminal shows it without scrolling;
    the last line says where to look.
    """
    found = findings(folder)
    tables = [*answers(found.comparisons), *results_tables(found.comparisons).values()]
    page = _wide(console)
    for table in reversed(tables):
        shown = terminal_table(table)
        unbound = page.options.update(width=ENDLESS)
        if Measurement.get(page, unbound, shown).minimum <= page.width:
            page.print(shown)
        else:  # with numbers cut off it would say nothing
            where = f"{table.title}: too wide for this terminal, see {destination / 'table.md'}"
            page.print(where, soft_wrap=True, highlight=False, markup=False)
    report = write_report(found, destination / "report.html")
    if tables:
        text = "\n".join(map(markdown_table, tables))
        (destination / "table.md").write_text(text, encoding="utf-8")
    plots = every_figure(found, destination / "plots")
    verb = "plot is" if len(plots) == 1 else "plots are"
    drawn = f"; {len(plots)} {verb} in {destination / 'plots'}" if plots else ""
    console.print(f"Look at {report} in a browser{drawn}.", soft_wrap=True, highlight=False)


def _wide(console: Console) -> Console:
    """A page with room for tables, where nobody has said how wide it is: in a pipe or a file."""
    unknown = not console.is_terminal and console.width == UNKNOWN and "COLUMNS" not in os.environ
    return Console(file=console.file, width=WIDE) if unknown else console
