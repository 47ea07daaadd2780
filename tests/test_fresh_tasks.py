"""The zoo's fresh tasks: that they can be learned, and the mathematics of each.

LineSearch takes no more than three steps on any of them here: nobody is to know how it fares.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from cgqbench.experiments.cell import Cell
from cgqbench.records.record import Line
from cgqbench.tasks.data import load
from cgqbench.tasks.networks.mixer import Mixer, Mixing
from cgqbench.tasks.seeds import seed_everything
from cgqbench.tasks.task import Task
from cgqbench.tasks.zoo import FRESH, PARTS, zoo_task
from cgqbench.tasks.zoo.denoising import Denoiser, noise_missed, noisy
from cgqbench.tasks.zoo.density import Flow, chains, negative_log_likelihood
from cgqbench.tasks.zoo.ordering import NUMBERS, START, Sorter
from cgqbench.tasks.zoo.table import COLUMNS, friedman, huber, table_network
from cgqbench.tasks.zoo.views import HIDDEN, TEMPERATURE, Encoder, contrast, two_views
from cgqbench.tasks.zoo.visits import FIELDS
from cgqbench.tasks.zoo.words import NEGATIVES, REACH, VOCABULARY, SkipGram, questions, six_answers
from cgqbench.training.arithmetic import Arithmetic
from cgqbench.training.epoch import train_epoch
from cgqbench.training.evaluation import evaluated, on_test_data
from cgqbench.training.feed import Feed
from cgqbench.training.learner import Learner

CPU = torch.device("cpu")
PAGE = Path(__file__).parents[1] / "docs" / "experiments.md"


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {name: zoo_task(name) for name in FRESH}


def learner_of(
    name: str,
    task: Task,
    method: str = "adamw:lr=0.003",
    batch: int = 32,
    steps: int = 3,
    seed: int = 0,
) -> Learner:
    """A short run on a few test examples."""
    test = task.test[0][:200], task.test[1][:200]
    small = replace(task, epoch_size=steps * batch, test=test)
    cell = Cell("zoo", "zoo", name, method, seed, epochs=2, batch_size=batch)
    arithmetic = Arithmetic(CPU)
    arithmetic.set_up(1)
    return Learner(cell, small, Feed(small, CPU, batch, seed), arithmetic)


def trained(learner: Learner, epochs: Sequence[int] = (1,)) -> list[Line]:
    return [train_epoch(learner, epoch, lambda progress: None) for epoch in epochs]


def state(learner: Learner) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in learner.model.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[key], second[key]) for key in first)


# --- the part


def test_the_parts_are_those_that_the_page_lists() -> None:
    table = PAGE.read_text().partition("| task | what it is |")[2].partition("\n\n")[0]
    listed: dict[str, dict[str, tuple[str, str]]] = {}
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if heading := re.fullmatch(r"\*\*(.+)\*\*", cells[0]):
            part = listed.setdefault(heading[1], {})
        else:
            part[cells[0].strip("`")] = cells[2], cells[3]
    words = {"chosen": "chosen on"}
    assert listed == {
        words.get(part, part): {
            name: ("all" if name == "gcn" else str(one.batch_size), f"{one.steps:,}")
            for name, one in members.items()
        }
        for part, members in PARTS.items()
    }


def test_no_task_is_in_two_parts() -> None:
    names = [name for members in PARTS.values() for name in members]
    assert len(names) == len(set(names)) == 24
    assert len(FRESH) == 8


# --- every task


@pytest.mark.parametrize("name", FRESH)
def test_adamw_learns_it(name: str, tasks: dict[str, Task]) -> None:
    """What was not trained on is told better after forty steps than before."""
    learner = learner_of(name, tasks[name], batch=FRESH[name].batch_size, steps=40)
    task, feed = learner.task, learner.feed
    before, _ = on_test_data(learner.model, task, feed)
    trained(learner)
    after, _ = on_test_data(learner.model, task, feed)
    assert before is not None
    assert after is not None
    assert after < 0.97 * before


@pytest.mark.parametrize("name", FRESH)
def test_a_seed_decides_a_run(name: str, tasks: dict[str, Task]) -> None:
    runs = [learner_of(name, tasks[name], seed=seed) for seed in (0, 0, 1)]
    losses = [trained(run)[0]["train_losses"] for run in runs]
    assert losses[0] == losses[1] != losses[2]
    assert same(state(runs[0]), state(runs[1]))


@pytest.mark.parametrize("name", FRESH)
def test_an_evaluation_leaves_no_trace(name: str, tasks: dict[str, Task]) -> None:
    looked, blind = (learner_of(name, tasks[name]) for _ in range(2))
    trained(looked)
    trained(blind)
    before = state(looked)
    found = evaluated(looked, 1)
    assert same(state(looked), before)
    assert evaluated(looked, 1) == found
    assert trained(looked, [2]) == trained(blind, [2])
    assert same(state(looked), state(blind))


@pytest.mark.parametrize("name", FRESH)
def test_a_search_has_the_shapes_it_wants(name: str, tasks: dict[str, Task]) -> None:
    learner = learner_of(name, tasks[name], "search", batch=8)
    before = state(learner)
    (row,) = trained(learner)
    assert len(row["train_losses"]) == 3
    assert all(map(math.isfinite, row["train_losses"]))
    assert not same(state(learner), before)


def test_guessing_is_what_the_data_say(tasks: dict[str, Task]) -> None:
    def entropy(*shares: float) -> float:
        return -sum(share * math.log(share) for share in shares)

    rate = tasks["clicks"].train[1].mean().item()
    numbers = tasks["tabular"].train[1]
    variances = tasks["flow"].train[0].double().var(0)
    constants = torch.linspace(-1, 1, 401)
    expected = {
        "skip_gram": (1 + NEGATIVES) * entropy(1 / 6, 5 / 6),
        "clicks": entropy(rate, 1 - rate),
        "diffusion": 1.0,
        "sorting": math.log(NUMBERS),
        # Normal numbers, each by itself, with the variances that there are.
        "flow": 4 * math.log(2 * math.pi * math.e) + variances.log().sum().item() / 2,
        "contrastive": math.log(2 * FRESH["contrastive"].batch_size - 1),
        "tabular": min(huber(c.expand_as(numbers), numbers).item() for c in constants),
    }
    for name, loss in expected.items():
        assert FRESH[name].guessing == pytest.approx(loss, rel=5e-3), name


@pytest.mark.parametrize("name", ["clicks", "flow", "sorting", "tabular"])
def test_what_is_tested_was_not_trained_on(name: str, tasks: dict[str, Task]) -> None:
    train, test = (
        set(map(tuple, split[0].flatten(1).tolist()))
        for split in (tasks[name].train, tasks[name].test)
    )
    # Where categories are few, visits may agree by chance.
    assert len(train & test) <= (0.02 * len(test) if name == "clicks" else 0)


# --- their mathematics


def test_a_word_is_asked_about_with_its_neighbours() -> None:
    text = torch.arange(100)
    weights = torch.zeros(100)
    weights[7] = 1
    inputs, answers = questions(text, 10_000, weights, torch.Generator().manual_seed(0))
    pairs = sum(2 * (100 - apart) for apart in range(1, REACH + 1))
    assert inputs.shape == (pairs, 2 + NEGATIVES)
    distances = (inputs[:, 1] - inputs[:, 0]).abs()
    assert torch.bincount(distances).tolist() == [0, *(2 * (100 - d) for d in range(1, REACH + 1))]
    assert inputs[:, 2:].eq(7).all()
    assert torch.equal(answers, torch.eye(1 + NEGATIVES)[:1].expand(pairs, -1))


def test_a_batch_touches_few_rows(tasks: dict[str, Task]) -> None:
    task = tasks["skip_gram"]
    assert task.train[0].min() >= 0
    assert task.train[0].max() == VOCABULARY - 1
    seed_everything(0)
    model = SkipGram()
    nn.init.normal_(model.contexts.weight)
    rows = slice(0, FRESH["skip_gram"].batch_size)
    inputs, targets = task.prepared(task.train[0][rows]), task.train[1][rows]
    loss = six_answers(model(inputs), targets)
    word, context = model.words.weight, model.contexts.weight
    slow = sum(
        -torch.sigmoid(word[w] @ context[c]).log()
        - sum(torch.sigmoid(-word[w] @ context[other]).log() for other in others)
        for w, c, *others in inputs[:20].tolist()
    )
    assert torch.allclose(six_answers(model(inputs[:20]), targets[:20]), slow / 20)
    loss.backward()
    assert word.grad is not None
    touched = word.grad.any(1).nonzero().flatten()
    assert torch.equal(touched, inputs[:, 0].unique())
    assert len(touched) < VOCABULARY / 10


def test_clicks_depend_on_pairs_of_categories(tasks: dict[str, Task]) -> None:
    """Biases alone do not explain what the best logit, known only to the data, does."""
    visits, clicked = tasks["clicks"].train
    assert visits.shape[1] == len(FIELDS)
    assert [int(column.max()) + 1 for column in visits.unbind(1)][2:] == list(FIELDS)[2:]
    counts = torch.bincount(visits[:, 3])
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.1)
    assert 0.1 < clicked.mean() < 0.4
    alone = torch.zeros(FIELDS[6], FIELDS[7])
    both = torch.zeros_like(alone)
    both.index_put_((visits[:, 6], visits[:, 7]), clicked, accumulate=True)
    alone.index_put_((visits[:, 6], visits[:, 7]), torch.ones_like(clicked), accumulate=True)
    logits = torch.logit((both / alone)[:5, :5])
    left = logits - logits.mean(1, keepdim=True) - logits.mean(0) + logits.mean()
    assert left.abs().max() > 0.2, "no pair matters"


def test_the_mixer_mixes_places_then_channels() -> None:
    seed_everything(0)
    block = Mixing(places=9, width=4).double()
    x = torch.rand(1, 9, 4, dtype=torch.float64)
    changed = x.clone()
    changed[0, 0] += torch.arange(4)
    with torch.no_grad():
        assert (block(x) - block(changed)).abs().amax(2).min() > 0, "a place is not seen by all"
        for layer in block.across_places:
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.weight)
        moved = (block(x) - block(changed)).abs().amax(2).gt(0)
    assert moved.tolist() == [[True] + [False] * 8], "channels are mixed across places"
    assert Mixer(patch=4, width=8, layers=1)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_noise_takes_the_images_place_at_constant_variance() -> None:
    draw = torch.Generator().manual_seed(0)
    images, noise = torch.randn(2, 4, 1, 100, 100, generator=draw).unbind(0)
    time = torch.tensor([0.0, 0.3, 0.7, 1.0])
    mixed = noisy(images, noise, time)
    assert torch.equal(mixed[0], images[0])
    assert torch.allclose(mixed[3], noise[3], atol=1e-6)
    assert mixed.var((1, 2, 3)).tolist() == pytest.approx([1.0] * 4, abs=0.05)


def test_the_denoiser_is_judged_by_the_noise_that_it_drew() -> None:
    seed_everything(0)
    model, images = Denoiser(), torch.zeros(3, 1, 14, 14)
    seed_everything(1)
    found, noise = model(images)
    seed_everything(1)
    time, drawn = torch.rand(3), torch.randn(3, 1, 14, 14)
    assert torch.equal(noise, drawn)
    assert torch.equal(found, model.found(noisy(images, drawn, time), time))
    assert not torch.allclose(found, model.found(noisy(images, drawn, time), time.flip(0)))
    expected = (found - noise).square().mean()
    assert torch.allclose(noise_missed((found, noise), images), expected)


def test_the_sorter_sees_what_it_has_written_and_nothing_later(tasks: dict[str, Task]) -> None:
    (inputs, ordered), _ = tasks["sorting"].train, tasks["sorting"].test
    numbers, written = inputs[:50].unbind(1)
    assert [sorted(row) for row in numbers.tolist()] == ordered[:50].tolist()
    assert (written[:, 0] == START).all()
    assert torch.equal(written[:, 1:], ordered[:50, :-1])
    seed_everything(0)
    model = Sorter().double().eval()
    changed = inputs[:1].clone()
    changed[0, 1, 5] = (changed[0, 1, 5] + 1) % NUMBERS
    other = inputs[:1].clone()
    other[0, 0, -1] = (other[0, 0, -1] + 1) % NUMBERS
    with torch.no_grad():
        first, later, elsewhere = (model(x)[0] for x in (inputs[:1], changed, other))
    assert torch.equal(first[:, :5], later[:, :5])
    assert not torch.allclose(first[:, 5:], later[:, 5:])
    assert (first - elsewhere).abs().amax(0).min() > 0, "what is to be sorted is not seen"


def test_the_flows_growth_is_the_determinant_of_its_derivative() -> None:
    seed_everything(0)
    model = Flow().double()
    point = torch.randn(8, dtype=torch.float64)
    derivative = torch.autograd.functional.jacobian(lambda x: model(x[None])[0][0], point)
    where, growth = model(point[None])
    assert growth.item() == pytest.approx(torch.linalg.slogdet(derivative).logabsdet.item())
    assert derivative.count_nonzero() == 64, "a dimension is left alone"
    normal = torch.distributions.Normal(0.0, 1.0)
    log_density = normal.log_prob(where).sum() + growth
    assert torch.allclose(negative_log_likelihood((where, growth), point), -log_density)


def test_a_chain_gives_back_the_noise_that_it_was_made_of(tasks: dict[str, Task]) -> None:
    noise = torch.randn(1000, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    made = chains(noise)
    links = torch.stack([made[:, :4], made[:, 4:]], 2).flatten(1)
    assert torch.equal(links[:, 0], noise[:, 0])
    before, after = links[:, :-1], links[:, 1:]
    found = (after - 1.5 * (2 * before).sin()) / (before.tanh() - 1).exp()
    assert torch.allclose(found, noise[:, 1:])
    assert tasks["flow"].train[0].dtype == torch.float32


def test_views_are_shifted_and_have_a_hole() -> None:
    white = torch.full((50, 2, 1, 28, 28), 255, dtype=torch.uint8)
    views = two_views(white, torch.Generator().manual_seed(0))
    assert views.shape == white.shape
    inside = views[..., 4:-4, 4:-4]  # no shift reaches it
    dark = inside.eq(0).sum((2, 3, 4))
    assert dark.max() == HIDDEN**2
    assert views.eq(0).sum((2, 3, 4)).min() >= HIDDEN**2
    assert not views[:, 0].equal(views[:, 1])
    assert not white.ne(255).any(), "the images were changed"


def test_contrast_is_the_mean_over_all_views_of_finding_the_partner() -> None:
    seed_everything(0)
    vectors = nn.functional.normalize(torch.randn(5, 2, 3, dtype=torch.float64), dim=2)
    views = [(n, v) for n in range(5) for v in range(2)]
    total = 0.0
    for n, v in views:
        scores = {
            (m, w): math.exp(float(vectors[n, v] @ vectors[m, w]) / TEMPERATURE)
            for m, w in views
            if (m, w) != (n, v)
        }
        total -= math.log(scores[n, 1 - v] / sum(scores.values()))
    assert contrast(vectors, torch.zeros(5)).item() == pytest.approx(total / 10)


def test_the_encoder_normalises_over_both_views() -> None:
    seed_everything(0)
    model, views = Encoder(), torch.rand(6, 2, 1, 28, 28)
    vectors = model(views)
    assert vectors.norm(dim=2).allclose(torch.ones(6, 2))
    again = model(views.flip(1)).flip(1)
    assert torch.allclose(vectors, again, atol=1e-5)


def test_the_views_tested_are_drawn_once_and_of_other_digits(tasks: dict[str, Task]) -> None:
    task = tasks["contrastive"]
    images = load("mnist").test.images[:2_000]
    assert torch.equal(zoo_task("contrastive").test[0], task.test[0])
    assert torch.equal(task.train[0][:9, 0], task.train[0][:9, 1])
    bright = images.flatten(1).float().mean(1)
    shown = task.test[0].flatten(2).float().mean(2)
    assert (shown <= bright[:, None]).all()
    assert (shown < bright[:, None]).float().mean() > 0.9


def test_the_tables_targets_are_standardised_and_have_outliers(tasks: dict[str, Task]) -> None:
    columns = torch.rand(100_000, COLUMNS, generator=torch.Generator().manual_seed(0))
    values = friedman(columns)
    assert values.mean().item() == pytest.approx(0, abs=0.02)
    assert values.std().item() == pytest.approx(1, abs=0.02)
    inputs, targets = tasks["tabular"].train
    largest = inputs.amax(0)
    assert (largest[-1] / largest[0]).item() == pytest.approx(1000, rel=0.01)
    errors = targets - friedman(inputs / torch.logspace(-1, 2, COLUMNS))
    assert errors.abs().median().item() == pytest.approx(0.2 * 0.7649, rel=0.03)  # of t with 3
    assert errors.abs().max() > 2


def test_the_tables_network_does_not_mind_units(tasks: dict[str, Task]) -> None:
    """Its first layer is a BatchNorm: other units are the same answers."""
    seed_everything(0)
    model = table_network(dropped=0.0).double()
    inputs = tasks["tabular"].train[0][:64].double()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.eps = 1e-30
    assert torch.allclose(model(inputs), model(1000 * inputs + 7))
    assert model(inputs).shape == (64,)
    seed_everything(0)
    dropping = table_network().double()
    assert not torch.equal(dropping(inputs), dropping(inputs)), "nothing drops out"


def test_the_tables_loss_is_straight_where_the_error_is_large() -> None:
    zero = torch.zeros(1)
    assert huber(zero, torch.tensor([0.4])).item() == pytest.approx(0.08)
    slope = huber(zero, torch.tensor([3.0])) - huber(zero, torch.tensor([2.0]))
    assert slope.item() == pytest.approx(0.5)


def test_clicks_are_judged_by_their_probability(tasks: dict[str, Task]) -> None:
    assert tasks["clicks"].loss is binary_cross_entropy_with_logits
    assert tasks["clicks"].correct is None
