"""The commands and what they say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cgqbench.cli import options as opt
from cgqbench.cli.data import data_app
from cgqbench.cli.run import Run, clear_errors, command_line, device_of, going_on_later
from cgqbench.cli.unheeded import refuse_unheeded
from cgqbench.experiments import EXPERIMENTS
from cgqbench.experiments.cell import Cell
from cgqbench.experiments.paper import BATCH_SIZE
from cgqbench.experiments.worth import by_worth
from cgqbench.methods import METHODS

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Compare optimizers honestly, and reproduce the paper behind CGQ.

Start with `cgq compare`: it trains a small network on MNIST with four methods, prints a table and
writes plots and a page to look at. Every run can be interrupted and continued with `--resume`.
""",
)
app.add_typer(data_app, name="data")


@app.callback()
def options(version: opt.Version = False) -> None:
    """What needs no command."""


@app.command()
def compare(
    methods: opt.Methods = ["sgd", "adam", "cgq", "scgq"],  # noqa: B006 (typer copies it)
    dataset: opt.Dataset = "mnist",
    network: opt.Network = "mlp",
    task: opt.Task = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs for every method.")] = 5,
    seeds: opt.Seeds = 1,
    batch_size: opt.BatchSize = BATCH_SIZE,
    average: opt.Average = True,
    out: opt.Out = Path("out/compare"),
    resume: opt.Resume = False,
    restart: opt.Restart = False,
    jobs: opt.Jobs = None,
    threads: opt.Threads = 1,
    device: opt.Device = "auto",
    engine: opt.Engine = "local",
    tensorboard: opt.TensorBoard = False,
    fast: opt.Fast = False,
    graphs: opt.Graphs = True,
) -> None:
    """Train one network with several methods, side by side, from the same initial point.

    Try `cgq compare -m sgd -m sgd:lr=0.1 -m scgq` or, on your own model and data,
    `cgq compare --task examples/my_task.py`. A method may carry settings: `name:setting=value,...`.
    `cgq methods` lists them.
    """
    dataset, network, file = _named(dataset, network, task)
    cells = [
        Cell("compare", dataset, network, method, seed, epochs, batch_size, average, file)
        for seed in range(seeds)
        for method in dict.fromkeys(methods)
    ]
    run = Run(out, resume, restart, jobs, threads, device, engine, tensorboard, fast, graphs)
    with clear_errors():
        run.cells(cells)


@app.command()
def reproduce(
    context: typer.Context,
    item: Annotated[
        str,
        typer.Argument(help=f"What of the paper, or beside it: {', '.join(EXPERIMENTS)}, figure1."),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="A data set, network, part or method to keep; may be given several times."
        ),
    ] = None,
    seeds: opt.Seeds = 3,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs, instead of the paper's budget.")
    ] = None,
    average: opt.Average = True,
    out: opt.Out = Path("out/reproduce"),
    budget: opt.Budget = None,
    resume: opt.Resume = False,
    restart: opt.Restart = False,
    jobs: opt.Jobs = None,
    threads: opt.Threads = 1,
    device: opt.Device = "auto",
    engine: opt.Engine = "local",
    tensorboard: opt.TensorBoard = False,
    fast: opt.Fast = False,
    graphs: opt.Graphs = True,
) -> None:
    """Run an experiment, most of them the paper's, and write its table or figure.

    `cgq reproduce table1 --only mnist --seeds 3` takes half an hour on two cores; the other columns
    want a GPU, and `--budget 25m` runs them in pieces. `figure1` is the landscape along the search
    line, `figure2` the run time, `figure3a`, `figure3b` and `figure3c` the ablations, `figure4` the
    dynamics; `today1` and `today2` are the tables' columns with the tuning-free methods published
    since, `lm` has small language models.

    LineSearch, which wants no rate: `any_rate` has the base's rate from 1e-6 to 1, alone and
    searched; `sweep`, `sweep_long` and `sweep_images` the best tuned rates beside it; `ceiling`
    what ceiling, search and average are worth; `safety` asks whether anything dies. `zoo` has
    twenty-four small tasks of other kinds, `--only TASK` one of them, `--only fresh` a part.
    """
    with clear_errors():
        if item == "figure1":
            heeded = {"item", "epochs", "out", "resume", "restart", "device"}
            refuse_unheeded(context, heeded, "figure1 is one run. For others: cgq landscape --help")
            landscape(epochs=epochs or 1, out=out, resume=resume, restart=restart, device=device)
            return
        if item not in EXPERIMENTS:
            known = ", ".join([*EXPERIMENTS, "figure1"])
            raise ValueError(f"There is no experiment {item!r}. Choose from: {known}.")
        cells = EXPERIMENTS[item].cells(seeds, only or (), epochs, average)
        run = Run(out, resume, restart, jobs, threads, device, engine, tensorboard, fast, graphs)
        if budget is None:
            run.cells(cells)
        else:
            run.within(budget, by_worth(cells))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder with records.")],
    out: Annotated[
        Path | None, typer.Option(help="Where plots, tables and the page go. Default: the folder.")
    ] = None,
) -> None:
    """Make tables, plots and the page again from records alone; nothing is trained."""
    from cgqbench.output.outcome import write_outcome

    with clear_errors():
        write_outcome(folder, out or folder, Console())


@app.command()
def landscape(
    dataset: opt.Dataset = "mnist",
    network: opt.Network = "mlp",
    method: Annotated[
        str, typer.Option("-m", "--method", help="cgq or scgq, maybe with settings.")
    ] = "cgq",
    task: opt.Task = None,
    epochs: Annotated[int, typer.Option(min=1, help="How far to train.")] = 1,
    looks: Annotated[int, typer.Option(min=2, help="How many searches to draw.")] = 24,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    out: opt.Out = Path("out/landscape"),
    resume: opt.Resume = False,
    restart: opt.Restart = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Record only; draw nothing yet.")] = False,
    device: opt.Device = "auto",
) -> None:
    """Draw the loss along the search line, with both parabolas, at moments of a training run.

    The moments are dense at the start, where the landscape is rough, and sparse later.
    """
    from cgqbench.output.outcome import write_outcome
    from cgqbench.training.landscape_run import record_landscapes
    from cgqbench.training.runner import Conditions

    with clear_errors():
        dataset, network, file = _named(dataset, network, task)
        cell = Cell("figure1", dataset, network, method, seed, epochs, task=file)
        console = Console()
        place, words = device_of(device), command_line()
        where = Conditions(out / "records", place, resume=resume, command=words)
        with going_on_later(console, restart=restart):
            record_landscapes(cell, where, looks, restart, console)
        if not quiet:
            write_outcome(out, out, console)


@app.command()
def methods(network: opt.Network = "mlp") -> None:
    """List the methods, with their settings for a network."""
    from rich.table import Table

    table = Table("name", "method", f"settings for {network}")
    table.columns[2].overflow = "fold"
    for name, method in METHODS.items():
        settings = ", ".join(f"{k}={v}" for k, v in method.settings_for(network).items())
        table.add_row(name, method.label, settings)
    Console().print(table)


def _named(dataset: str, network: str, task: Path | None) -> tuple[str, str, str | None]:
    """What a cell calls its data, its network and its file: a file takes the place of both."""
    return (dataset, network, None) if task is None else (task.stem, "task", str(task))


def main() -> None:
    """Run the command."""
    app()
