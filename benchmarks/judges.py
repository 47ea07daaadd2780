"""Can a run tell that its steps are too short or too long? What it sees, beside what it would want.

    python benchmarks/judges.py results gcn vae     # tasks of the zoo; none: all that suit a CPU

`wants` is the best constant rate of AdamW, of the five in the records and by the average of the
weights, over the rate that LineSearch had on the whole: above 1 its steps were too short, below 1
too long. Beside it is what its judges saw in the mean, once half of the run was over, and two that
it has not: `promise`, by how much the slope says that a step lowers its batch's loss, and `gap`, by
how much the average of the weights does; both in standard deviations of the loss of batches. A
judge that could decide would rise or fall with `wants`; how well it does is its rank correlation.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import spearmanr
from where import measured_on

from cgq import LineSearch
from cgq.rules.trust import Trust
from cgq.rules.trust_region import Region
from cgqbench.experiments.cell import Cell
from cgqbench.experiments.registry import ZOO_RATES
from cgqbench.records.reading import read_run
from cgqbench.tasks.named import by_name
from cgqbench.tasks.zoo import EPOCHS, MEMBERS, ZOO
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.feed import Feed
from cgqbench.training.learner import Learner

JUDGES = ("straightness", "agreement", "confirmed", "promise", "gap")
EVERY = 10  # steps: how often the average's loss is measured
ON_A_GPU = {"gpt_bf16", "gpt_large_batch", "resnet_gn", "vit", "vgg_svhn", "lstm"}


def best_constant_rate(records: Path, task: str) -> float:
    """Of AdamW, by what the average of its weights ends with."""
    ends = {}
    for rate in ZOO_RATES:
        run = read_run(records / f"{ZOO}-{task}-adamw_lr={rate}-0.jsonl")
        if run is None:
            raise SystemExit(f"{records} has no AdamW at {rate} on {task}: run cgq reproduce zoo.")
        last = run.epochs[-1]
        accuracy = last["average_test_accuracy"]
        ends[rate] = last["average_test_loss"] if accuracy is None else -accuracy
    return min(ends, key=lambda rate: ends[rate])


def seen_by(task_name: str) -> tuple[float, dict[str, float]]:
    """The mean rate of a run of LineSearch, and what judges saw in its second half."""
    member, task = MEMBERS[task_name], by_name(ZOO, task_name)
    cell = Cell("judges", ZOO, task_name, "search", 0, EPOCHS, member.batch_size)
    device = torch.device("cpu")
    feed = Feed(task, device, member.batch_size, 0)
    learner = Learner(cell, task, feed, Arithmetic(device))
    optimizer, averaged = learner.optimizer, learner.averaged
    assert isinstance(optimizer, LineSearch)
    assert averaged is not None
    group = optimizer.param_groups[0]
    rates: list[float] = []
    seen: dict[str, list[float]] = {judge: [] for judge in JUDGES}
    for epoch in range(1, EPOCHS + 1):
        for inputs, targets in feed.epoch(epoch):
            is_late, averages_loss = len(rates) > member.steps // 2, math.nan
            if is_late and len(rates) % EVERY == 0:
                with torch.no_grad(), torch.random.fork_rng():
                    averages_loss = task.loss(averaged.module(inputs), targets).item()
            loss = optimizer.step(learner.closure(inputs, targets))
            averaged.update_parameters(learner.model)
            rates.append(float(group["step_size"]))
            if is_late:
                judged = opinions(optimizer, float(loss) - averages_loss)
                for judge in JUDGES:
                    seen[judge] += [judged[judge]] if math.isfinite(judged[judge]) else []
    return statistics.mean(rates), {judge: statistics.mean(each) for judge, each in seen.items()}


def opinions(optimizer: LineSearch, gap: float) -> dict[str, float]:
    """What each judge says of the last step; NaN: nothing."""
    group, search = optimizer.param_groups[0], optimizer.last_search
    region, noise = Region.of(group), Trust.of(group).batch_noise
    promise = math.nan
    if search is not None and search.trial_steps:
        promise = -search.slope * search.trial_steps[0]
    return {
        "straightness": region.straightness,
        "agreement": region.agreement,
        "confirmed": region.confirmed,
        "promise": promise / noise if noise else math.nan,
        "gap": gap / noise if noise else math.nan,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the judges of LineSearch's ceiling see.")
    parser.add_argument("results", type=Path, help="the folder that has records/zoo")
    # Of no arguments at all argparse asks whether an empty list is among the choices.
    parser.add_argument("tasks", nargs="*", choices=[*MEMBERS, []], help="none: all for a CPU")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    tasks = asked.tasks or [name for name in MEMBERS if name not in ON_A_GPU]
    for task in track(tasks, console=Console(stderr=True)):
        rate, seen = seen_by(task)
        wanted = best_constant_rate(asked.results / "records" / ZOO, task)
        rows.append((task, rate, wanted, wanted / rate, *seen.values()))
    rows.sort(key=lambda row: row[3])
    table = Table("task", "LineSearch's rate", "best constant rate", "wants", *JUDGES)
    for task, rate, wanted, wants, *judged in rows:
        numbers = [f"{value:+.3f}" for value in judged]
        table.add_row(task, f"{rate:.2g}", f"{wanted:g}", f"{wants:.2f}", *numbers)
    console = Console(width=130)
    console.print(table)
    # The rate is no judge: but the best ones of AdamW are much alike, so that it goes with `wants`.
    for place, judge in (1, "LineSearch's rate"), *enumerate(JUDGES, 4):
        found = spearmanr([row[3] for row in rows], [row[place] for row in rows]).statistic
        console.print(f"rank correlation of wants and {judge}: {found:+.2f}", highlight=False)
    console.print(f"{measured_on(torch.device('cpu'))}, one thread, seed 0", highlight=False)


if __name__ == "__main__":
    main()
