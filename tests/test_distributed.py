"""Two processes, each with its share of a batch, take the steps of one process with all of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from two_ranks import (
    OPTIONS,
    Run,
    bare_step,
    batches,
    classic_step,
    steps_of,
    uneven_data,
    widths,
)

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    # Or processes started again may find the addresses of dead ones (pytorch issue 135712).
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SCRIPT = Path(__file__).with_name("two_ranks.py")
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:This closure runs backward:UserWarning"),
]


def torchrun(*words: str | Path) -> str:
    """What two processes print."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        + [str(word) for word in words],
        env={**os.environ, **SETTINGS},
        capture_output=True,
        text=True,
        timeout=600,  # for what hangs; two processes on busy cores take a minute to start
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on_two_ranks(part: str, folder: Path) -> tuple[Any, Any]:
    """What each of two ranks saw in a part of the script."""
    torchrun(SCRIPT, part, folder)
    first, second = (
        torch.load(folder / f"{part} {rank}.pt", weights_only=True) for rank in range(2)
    )
    return first, second


def assert_near(left: list[Tensor], right: list[Tensor], tolerance: float = 1e-10) -> None:
    for one, two in zip(left, right, strict=True):
        torch.testing.assert_close(one, two, rtol=0.0, atol=tolerance)


def assert_same(left: list[Tensor], right: list[Tensor]) -> None:
    assert_near(left, right, 0.0)


def weights_in(checkpoint: Path) -> list[Tensor]:
    file = checkpoint.with_suffix(".pt")
    dcp_to_torch_save(checkpoint, file)
    return [weight for _, weight in sorted(torch.load(file, weights_only=True)["model"].items())]


def evaluations(seen: list[Any]) -> list[int]:
    return [0 if search is None else len(search[0]) for search in seen]


def test_two_ranks_train_as_one_and_go_on_from_its_checkpoints(tmp_path):
    first, second = on_two_ranks("training", tmp_path)
    check_that_ranks_equal_one(first["equal"], second["equal"])
    check_uneven_batches_and_other_closures(first["uneven"], second["uneven"])
    check_what_is_refused(first["uneven"])
    check_what_is_refused(second["uneven"])
    check_collectives(first["collectives"])
    # What other ranks hold counts too: so large a network begins with so long steps.
    assert first["counted"] == second["counted"] == {"ddp": 81, "fsdp": 81}
    check_that_one_goes_on(first["saved"], tmp_path)
    assert_same(first["saved on one"], second["saved on one"])
    check_buffers(first["buffers"], second["buffers"])
    for width, weights in widths().items():
        assert_same(first["widths"][width], second["widths"][width])
        assert_near(first["widths"][width], weights, 1e-5)
    for name, (weights, steps) in first["other arithmetic"].items():
        assert steps == second["other arithmetic"][name][1], "the ranks took different decisions"
        assert_same(weights, second["other arithmetic"][name][0])
    loaded, _ = on_two_ranks("loading", tmp_path)
    check_that_two_go_on(first["saved"], loaded)
    assert (tmp_path / "checkpoint" / ".metadata").exists(), "the page's code was run as well"


def check_that_ranks_equal_one(first: Any, second: Any) -> None:
    assert len(first) == 2 * len(OPTIONS) + 2
    for (name, kind), (weights, seen) in first.items():
        alone = Run("alone", **OPTIONS[name]).train(batches(steps_of(name)))
        assert seen == second[name, kind][1], "the ranks took different decisions"
        assert evaluations(seen) == evaluations(alone.seen)
        assert (None in seen) == ("search_prob" in OPTIONS[name])
        assert_near(weights, alone.weights())
        assert_same(weights, second[name, kind][0])


def check_uneven_batches_and_other_closures(first: Any, second: Any) -> None:
    alone = {name: Run("alone") for name in ("rows", "classic", "bare")}
    alone["rows"].train(uneven_data())
    for x, y in batches(6):
        classic_step(alone["classic"], x, y)
        bare_step(alone["bare"], x, y)
    for name, run in alone.items():
        for kind in "ddp", "fsdp":
            weights, seen = first[f"{name} {kind}"]
            assert seen == second[f"{name} {kind}"][1]
            assert evaluations(seen) == evaluations(run.seen)
            assert_near(weights, run.weights())

    kept, skipped, seen = first["not finite"]
    assert (kept, skipped) == (True, 2)
    assert first["not finite"] == second["not finite"]
    assert evaluations(seen)[3:] == [0, 4]

    kept, told, *run = first["raised"]
    assert kept
    assert "on another rank" in told
    kept, told, *other = second["raised"]
    assert kept
    assert told == "only here"
    assert_same(run[0], other[0])
    assert str(run[1]) == str(other[1])
    assert len(run[1]) == 3 + 1 + 2


def check_buffers(first: Any, second: Any) -> None:
    """Probes see what their first pass saw, and ranks begin each step with those of the first."""
    for seen, last in ((first, 6.0), (second, 15.0)):
        assert [start for _, start in seen["SGD"][0]] == [*range(6)]
        for name, (starts, centre) in seen.items():
            assert centre == last
            assert [start for is_first, start in starts if is_first] == [*range(6)]
            step = -1
            for is_first, start in starts:
                step += is_first
                assert start == step, name
            assert (len(starts) > 6) == (name != "SGD")


def check_collectives(seen: Any) -> None:
    """One for a decision: how far to go; around a base first whether to let it move at all."""
    assert len(seen) == 2 * (len(OPTIONS) + 1)
    for (name, kind), counts in seen.items():
        assert counts == [2 if name == "LineSearch" else 1] * 12, (name, kind)


def check_what_is_refused(seen: Any) -> None:
    assert "Give every rank as many batches" in seen["join"]
    apart, mixed, loaded, unseen = seen["refused"]
    assert "sharded over the ranks [0, 1], but losses are averaged over [" in apart
    assert "shard them all with fully_shard over one mesh" in mixed
    assert "set_optimizer_state_dict" in loaded
    assert "model=model" in unseen
    error, steps, weights = seen["stopped"]
    assert "exhausted" in error
    assert steps == 3
    assert_near(weights, Run("alone").train(batches(3)).weights())


def check_that_one_goes_on(saved: Any, folder: Path) -> None:
    """From what two ranks have saved, and save what two will go on from."""
    options = OPTIONS["sCGQ"]
    whole = Run("alone", **options).train(batches(20))
    for kind, (weights, progress) in saved.items():
        assert_near(weights, whole.weights(), 1e-12)
        for start in 0, 10:
            resumed = Run("alone", **options).loaded(folder / f"{kind} {start}")
            assert resumed.progress()["steps"] == start
            resumed.saved(folder / f"alone {kind} {start}").train(batches(20)[start:])
            assert resumed.progress() == pytest.approx(progress, rel=1e-12)
            assert_near(resumed.weights(), weights, 1e-12)


def check_that_two_go_on(saved: Any, loaded: Any) -> None:
    assert len(loaded) == 4
    for (kind, source), (weights, progress) in loaded.items():
        if kind == source:
            assert_same(weights, saved[kind][0])
            assert progress == saved[kind][1]
        assert_near(weights, saved[kind][0], 1e-12)
        assert progress == pytest.approx(saved[kind][1], rel=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_of_one_rank_in_shards_goes_on_without_them(device, tmp_path):
    whole = Run("alone", device, **OPTIONS["sCGQ"]).train(batches(20))
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{tmp_path}/store",
        rank=0,
        world_size=1,
    )
    try:
        run = Run("fsdp", device, **OPTIONS["sCGQ"]).train(batches(11))
        assert run.seen[-1] is None, "on an accelerator its numbers are still there"
        weights = run.saved(tmp_path / "11").train(batches(20)[11:]).weights()
    finally:
        dist.destroy_process_group()
    assert_near(weights, whole.weights(), 1e-12)
    for other in "cpu", device:
        resumed = Run("alone", other, **OPTIONS["sCGQ"]).loaded(tmp_path / "11")
        resumed.train(batches(20)[11:])
        assert_near(resumed.weights(), weights, 1e-12)
        assert resumed.progress() == pytest.approx(run.progress(), rel=1e-12)


def test_numbers_on_a_device_are_saved_as_numbers():
    run = Run("alone").train(batches(2))
    group = run.optimizer.param_groups[0]
    group |= {"beta": torch.tensor(0.25), "skipped": torch.tensor(3)}
    assert (run.progress()["beta"], run.progress()["skipped"]) == (0.25, 3)
    assert not any(isinstance(value, Tensor) for value in run.progress().values())
    assert isinstance(group["beta"], Tensor), "saving changes nothing"


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill -9")
def test_a_killed_rank_is_started_again_and_ends_at_the_same_weights(tmp_path):
    """And DDP, killed, where FSDP, undisturbed, does."""
    example = ROOT / "examples" / "with_torchrun.py"
    bomb = Path(__file__).with_name("killed_rank.py")
    whole = torchrun(example, "--sharded", "--folder", tmp_path / "whole")
    killed = torchrun("--max-restarts", "1", bomb, example, "--folder", tmp_path / "killed")
    lines = re.findall(r"epoch \d+ \(from (\d+)\): loss (\S+)", killed)
    assert [int(start) for start, _ in lines] == [0, 0, 0, 3, 3, 3], "it died in the fourth of 6"
    assert [loss for _, loss in lines] == re.findall(r"loss (\S+)", whole)
    assert float(lines[-1][1]) < 0.2 < float(lines[0][1])
    assert_near(*(weights_in(folder / "6") for folder in (tmp_path / "whole", tmp_path / "killed")))
