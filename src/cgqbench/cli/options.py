"""The options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import cgq

Methods = Annotated[
    list[str], typer.Option("-m", "--method", help="A method; may be given several times.")
]
Dataset = Annotated[
    str, typer.Option(help="mnist, fashion_mnist, svhn, cifar10, cifar100; stdlib (text); zoo.")
]
Network = Annotated[
    str,
    typer.Option(
        help="mlp, vgg16, resnet20, resnet110, resnet164, densenet100; for text gpt1m, gpt10m; "
        "of the zoo a task's name."
    ),
]
Task = Annotated[
    Path | None,
    typer.Option(help="A Python file of yours with model(), data() and, if it likes, loss()."),
]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, from 0 on.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples a batch.")]
Average = Annotated[
    bool, typer.Option(help="Also test the anytime average of the weights (no extra training).")
]
Out = Annotated[Path, typer.Option(help="Where records, plots and the page go.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue unfinished runs.")]
Restart = Annotated[
    bool, typer.Option("--restart", help="Discard the records of these runs and begin again.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        help="Time for training: 90s, 25m, 1h. Most worth first, as many epochs as fit; the same "
        "command goes on (it implies --resume)."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at a time. Default: one a core; one on a GPU, 6 pay there."),
]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of each run.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Fast = Annotated[
    bool, typer.Option("--fast", help="On a GPU: bf16 and compiled blocks instead of TF32.")
]
Graphs = Annotated[
    bool, typer.Option(help="On a GPU: replay captured graphs; the results are the same.")
]
Engine = Annotated[str, typer.Option(help="local (processes here) or ray (a Ray cluster).")]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Also log for TensorBoard, below the out folder.")
]


def print_version(asked: bool) -> None:
    """Print the version and end."""
    if asked:
        typer.echo(f"cgq {cgq.__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=print_version, help="The version.")
]
