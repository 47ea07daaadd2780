"""The zoo's tasks: what they are made of, and that every process sees the same."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from small_zoo import shrink
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.profiler import ProfilerActivity, profile

from cgqbench.experiments.cell import Cell
from cgqbench.records.reading import runs
from cgqbench.tasks.data.stdlib import code, docstrings
from cgqbench.tasks.named import by_name
from cgqbench.tasks.networks.gpt import GPT, SCALE
from cgqbench.tasks.seeds import seed_everything
from cgqbench.tasks.task import Task
from cgqbench.tasks.zoo import (
    CHOSEN,
    EPOCHS,
    FRESH,
    MEMBERS,
    REPORTED,
    adapters,
    new_digits,
    part_of,
    pretraining,
)
from cgqbench.tasks.zoo.autoencoders import VAE, negative_elbo
from cgqbench.tasks.zoo.citations import CLASSES, GCN
from cgqbench.tasks.zoo.images import resnet_with_group_norm
from cgqbench.tasks.zoo.poisson import MODES, NegativeLaplacian, source
from cgqbench.training.evaluation import on_test_data
from cgqbench.training.feed import Feed
from cgqbench.training.runner import Conditions, run_cell

CPU = torch.device("cpu")
DRAWN = (
    *("derivatives", "gcn", "factorisation", "gru_regression", "convnet", "lora", "finetune"),
    *FRESH,
)
"""Those whose data are drawn here, cut from a text or chosen from a set."""


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield
    forget()


def forget() -> None:
    """Train in advance anew: oneDNN, which some tests switch off, rounds otherwise."""
    adapters._trained_on_code.cache_clear()
    new_digits._trained_on_other_digits.cache_clear()


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {name: by_name("zoo", name) for name in MEMBERS}


def model_of(task: Task, seed: int = 0) -> nn.Module:
    seed_everything(seed)
    return task.model()


def first_loss(task: Task, model: nn.Module) -> Tensor:
    seed_everything(1)
    inputs, targets = (tensor[:2] for tensor in task.train)
    return task.loss(model(task.prepared(inputs)), targets)


def digest(task: Task) -> str:
    tensors = [*task.train, *task.test]
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(tensor[:: max(1, len(tensor) // 500)].contiguous().numpy().tobytes())
    return content.hexdigest()


# --- the split and the budgets


def test_the_parts_are_those_that_were_fixed_before_anything_was_tried() -> None:
    chosen = "convnet gpt_small gpt_bf16 vae derivatives resnet_gn gcn"
    reported = "lstm vit factorisation autoencoder lora finetune gpt_large_batch vgg_svhn"
    assert list(CHOSEN) == chosen.split()
    assert list(REPORTED) == [*reported.split(), "gru_regression"]
    fresh = "skip_gram clicks mixer diffusion sorting flow contrastive tabular"
    assert list(FRESH) == fresh.split()
    assert list(MEMBERS) == [*CHOSEN, *REPORTED, *FRESH]
    names = ("vae", "vit", "mixer", "gpt_fp32", "okapi")
    assert [part_of(name) for name in names] == ["chosen", "reported", "fresh", "chosen", "chosen"]


@pytest.mark.parametrize("name", MEMBERS)
def test_ten_epochs_are_the_budget(name: str, tasks: dict[str, Task]) -> None:
    member, task = MEMBERS[name], tasks[name]
    assert member.steps == 200 if name in ("gcn", "lora", "finetune") else member.steps >= 600
    assert task.epoch_size == member.batch_size * member.steps / EPOCHS
    if name not in ("resnet_gn", "vit", "vgg_svhn"):  # of which there are few images here
        feed = Feed(task, CPU, member.batch_size, seed=0)
        assert EPOCHS * len(feed) == member.steps
        assert len(task.test[0]) <= 5000 or task.test[0].dim() == 2


def test_what_is_not_in_the_zoo_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no 'okapi'. Choose one of convnet, gpt_small"):
        by_name("zoo", "okapi")


# --- every task


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("name", MEMBERS)
def test_a_batch_has_a_loss_and_gradients_that_are_finite(
    name: str, tasks: dict[str, Task]
) -> None:
    task = tasks[name]
    model = model_of(task)
    loss = first_loss(task, model)
    assert loss.shape == ()
    assert loss.isfinite()
    loss.backward()
    for label, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, label
            assert parameter.grad.isfinite().all(), label
    with torch.no_grad():
        assert torch.equal(first_loss(task, model), loss), "another loss without a graph"


READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"}
"""The operations whose result the host must see: no captured graph can have them."""


@contextmanager
def reads() -> Iterator[set[str]]:
    found: set[str] = set()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        yield found
    found |= READS & {event.name for event in seen.events()}


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("name", MEMBERS)
def test_no_pass_makes_the_host_look(name: str, tasks: dict[str, Task]) -> None:
    model = model_of(tasks[name])
    with reads() as found:
        first_loss(tasks[name], model).backward()
    assert not found


def test_the_look_of_a_host_is_noticed() -> None:
    numbers = torch.ones(3, 2, requires_grad=True)
    with reads() as found:
        numbers.prod(1).sum().backward()  # looks for zeros
    assert found == {"aten::_local_scalar_dense"}


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("name", MEMBERS)
def test_a_seed_decides_where_training_starts(name: str, tasks: dict[str, Task]) -> None:
    task = tasks[name]
    first, again, other = (model_of(task, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_another_process_sees_the_same_data_and_the_same_trained_weights(
    tasks: dict[str, Task],
) -> None:
    program = """
import torch, test_zoo_tasks as here
from small_zoo import shrink
torch.set_num_threads(2)
shrink(here.pytest.MonkeyPatch())
for name in here.DRAWN:
    task = here.by_name("zoo", name)
    print(here.digest(task), here.weights(task))
"""
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    forget()
    mine = [f"{digest(tasks[name])} {weights(tasks[name])}" for name in DRAWN]
    assert found.stdout.split("\n")[:-1] == mine
    assert len(set(mine)) == len(DRAWN)


def weights(task: Task) -> str:
    content = hashlib.sha256()
    for parameter in model_of(task).parameters():
        content.update(parameter.detach().numpy().tobytes())
    return content.hexdigest()


@pytest.mark.parametrize("name", ["gcn", "factorisation", "derivatives", "finetune"])
def test_what_is_tested_was_not_trained_on(name: str, tasks: dict[str, Task]) -> None:
    task = tasks[name]
    if name == "gcn":
        trained, tested = (split[0].flatten().tolist() for split in (task.train, task.test))
    else:
        trained, tested = (
            [tuple(row.flatten().tolist()) for row in split[0]] for split in (task.train, task.test)
        )
    assert not set(trained) & set(tested)


@pytest.mark.parametrize("method", ["search", "dog", "adamw_cosine:lr=0.01"])
@pytest.mark.parametrize("name", ["lora", "derivatives", "gcn"])
def test_a_run_trains_what_others_find_hard(name: str, method: str, tmp_path: Path) -> None:
    """Frozen weights, derivatives in the loss, a graph for a batch."""
    cell = Cell("zoo", "zoo", name, method, 0, epochs=1, batch_size=MEMBERS[name].batch_size)
    run_cell(cell, Conditions(tmp_path))
    (run,) = runs(tmp_path)
    assert run.end == {"kind": "end", "status": "finished"}
    assert run.header["batches"] == MEMBERS[name].steps / EPOCHS
    assert run.epochs[0]["average_test_loss"] is not None


# --- their mathematics


def test_the_laplacian_is_that_of_the_network() -> None:
    model = model_of(Task(NegativeLaplacian, *[(torch.zeros(1), torch.zeros(1))] * 2)).double()
    points = torch.rand(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    h = 1e-4
    with torch.no_grad():
        around = sum(
            model.solution(points + sign * h * torch.eye(2, dtype=torch.float64)[axis])
            for axis in range(2)
            for sign in (1, -1)
        )
        by_differences = (4 * model.solution(points) - around) / h**2
        assert torch.allclose(model(points), by_differences, rtol=1e-5, atol=1e-6)
        border = torch.tensor([[0.0, 0.3], [1.0, 0.3], [0.3, 0.0], [0.3, 1.0]])
        assert not model.solution(border.double()).any()


def test_the_source_is_what_the_known_solution_asks_for() -> None:
    points = torch.rand(50, 2, generator=torch.Generator().manual_seed(0)).double()
    at = points.requires_grad_()
    u = sum(a * torch.sin(j * torch.pi * at[:, 0]) * torch.sin(k * torch.pi * at[:, 1])
            for j, k, a in MODES)  # fmt: skip
    (slope,) = torch.autograd.grad(u.sum(), at, create_graph=True)
    bends = [torch.autograd.grad(slope[:, i].sum(), at, retain_graph=True)[0][:, i] for i in (0, 1)]
    ratio = -(bends[0] + bends[1]) / source(points.detach())
    assert torch.allclose(ratio, ratio[0].expand(50), rtol=1e-4)
    grid = torch.cartesian_prod(*[(torch.arange(200) + 0.5) / 200] * 2)
    assert source(grid).square().mean().item() == pytest.approx(1.0, abs=1e-5)


def test_the_vaes_loss_is_a_sum_and_its_test_a_mean(tasks: dict[str, Task]) -> None:
    seed_everything(0)
    task, model = tasks["vae"], VAE()
    images = task.train[1][:3]
    output = model(task.prepared(task.train[0][:3]))
    logits, mean, log_variance = output
    code = Normal(mean, (0.5 * log_variance).exp())
    divergence = kl_divergence(code, Normal(torch.zeros(20), torch.ones(20))).sum()
    shown = images / 255
    drawn = -(shown * logits.sigmoid().log() + (1 - shown) * (-logits).sigmoid().log())
    assert torch.allclose(negative_elbo(output, images), drawn.sum() + divergence, rtol=1e-5)
    feed = Feed(task, CPU, 128, seed=0)
    loss, accuracy = on_test_data(model, task, feed)
    assert accuracy is None
    assert loss == pytest.approx(544, rel=0.05)  # an image of 784 pixels at ln 2 each
    assert on_test_data(model, task, feed)[0] == loss, "a test draws the same each time"


def test_adapters_change_nothing_at_first_and_frozen_weights_never(tasks: dict[str, Task]) -> None:
    task = tasks["lora"]
    adapted, original = model_of(task), adapters._trained_on_code()
    tokens = task.prepared(task.train[0][:2])
    assert torch.allclose(adapted(tokens), original(tokens), atol=1e-6)
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 4 * 2
    assert {name.rpartition(".")[2] for name in trained} == {"down", "up"}
    ranks = {min(p.shape) for p in adapted.parameters() if p.requires_grad}
    assert ranks == {4}
    assert all(p.requires_grad for p in original.parameters()), "the original was frozen too"


def test_fine_tuning_starts_from_other_digits_with_a_new_head(tasks: dict[str, Task]) -> None:
    task = tasks["finetune"]
    for _, labels in (task.train, task.test):
        assert set(labels.tolist()) == set(range(5))
    assert len(task.train[0]) == 640
    model, original = model_of(task), new_digits._trained_on_other_digits()
    assert torch.equal(model[0].weight, original[0].weight)
    assert not torch.equal(model[-1].weight, original[-1].weight)


def test_training_in_advance_leaves_generator_and_threads_alone(tasks: dict[str, Task]) -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    task = tasks["factorisation"]
    first = pretraining.pretrained(task.model, task, 64, steps=3, lr=1e-2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    torch.manual_seed(4)
    again = pretraining.pretrained(task.model, task, 64, steps=3, lr=1e-2)
    assert torch.equal(first.users.weight, again.users.weight)
    longer = pretraining.pretrained(task.model, task, 64, steps=4, lr=1e-2)
    assert not torch.equal(first.users.weight, longer.users.weight)


def test_the_tied_gpt_has_one_table_and_no_biases(tasks: dict[str, Task]) -> None:
    for name in ("gpt_bf16", "gpt_large_batch"):
        model = model_of(tasks[name])
        gpt = model.network
        assert isinstance(gpt, GPT)
        assert gpt.head.weight is gpt.tokens.weight
        assert not [label for label, _ in model.named_parameters() if "bias" in label]
        assert len(gpt.blocks) == 4
        for block in gpt.blocks:
            for layer, scale in ((block.wide, 1.0), (block.narrow, 8**-0.5)):
                assert layer.weight.std().item() == pytest.approx(SCALE * scale, rel=0.02)
    assert model_of(tasks["gpt_small"]).head.weight.shape == (97, 64)


@pytest.mark.usefixtures("without_onednn")
def test_the_wide_gpt_computes_in_bf16_and_answers_in_float32(tasks: dict[str, Task]) -> None:
    model = model_of(tasks["gpt_bf16"])
    seen = []
    model.network.blocks[0].wide.register_forward_hook(lambda m, i, o: seen.append(o.dtype))
    output = model(tasks["gpt_bf16"].prepared(tasks["gpt_bf16"].train[0][:1]))
    assert seen == [torch.bfloat16]
    assert output.dtype == torch.float32
    assert torch.equal(output, output.bfloat16().float()), "no more digits than were computed"


def test_the_autoencoder_is_float64_throughout(tasks: dict[str, Task]) -> None:
    task = tasks["autoencoder"]
    model = model_of(task)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert task.prepared(task.train[0][:1]).dtype == torch.float64
    assert first_loss(task, model).dtype == torch.float64


def test_every_patch_of_the_vit_sees_every_other(tasks: dict[str, Task]) -> None:
    model = model_of(tasks["vit"]).double()
    image = torch.rand(1, 3, 32, 32, dtype=torch.float64)
    changed = image.clone()
    changed[..., 31, 31] += 1
    seen: list[Tensor] = []
    model.blocks.register_forward_hook(lambda m, i, o: seen.append(o))
    with torch.no_grad():
        model(image)
        model(changed)
    assert seen[0].shape == (1, 64, 128)
    assert (seen[1] - seen[0]).abs().amax(2).min() > 0


def test_the_resnet_keeps_no_statistics() -> None:
    model = resnet_with_group_norm()
    assert not list(model.buffers())
    assert sum(isinstance(module, nn.GroupNorm) for module in model.modules()) == 19
    assert sum(p.numel() for p in model.parameters()) == 219_482  # as many as with BatchNorm


def test_the_graph_is_normalised_and_knows_its_classes(tasks: dict[str, Task]) -> None:
    task = tasks["gcn"]
    model = model_of(task)
    assert isinstance(model, GCN)
    assert torch.equal(model.graph, model.graph.T)
    assert torch.linalg.eigvalsh(model.graph.double())[-1].item() == pytest.approx(1.0, abs=1e-6)
    nodes, labels = task.train[0][:1], task.train[1][:1]
    assert nodes.shape == labels.shape == (1, 140)
    assert torch.bincount(labels[0]).tolist() == [20] * CLASSES
    assert model.eval()(nodes).shape == (1, CLASSES, 140)
    assert torch.equal(model(nodes), model(nodes))
    assert not torch.equal(model.train()(nodes), model(nodes)), "nothing drops out"
    all_labels = torch.arange(len(model.graph)) % CLASSES
    edges = (model.graph > 0).fill_diagonal_(False)
    alike = (all_labels[:, None] == all_labels)[edges].float().mean().item()
    assert 0.5 < alike < 0.9


def test_a_program_is_docstrings_and_code() -> None:
    quotes = b'"""'
    text = b"a = 1\n" + quotes + b"One.\n   Two." + quotes + b"\nb = 2"
    assert docstrings(text) == b"One.\nTwo."
    assert code(text) == b"a = 1\n\nb = 2"


def test_texts_have_the_lengths_of_their_networks(tasks: dict[str, Task]) -> None:
    lengths = {"gpt_small": 64, "gpt_bf16": 256, "gpt_large_batch": 256, "lstm": 128, "lora": 64}
    for name, length in lengths.items():
        task = tasks[name]
        for inputs, targets in (task.train, task.test):
            assert inputs.shape[1] == targets.shape[1] == length
            assert torch.equal(inputs[::5000, 1:], targets[::5000, :-1])
    checksums = {tasks[name].checksum for name in lengths}
    assert len(checksums) == 4  # the two bf16 ones share theirs
    assert None not in checksums
