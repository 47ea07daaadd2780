"""Methods by name: the paper's settings, settings of one's own, and errors that help."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cgqbench.experiments import EXPERIMENTS
from cgqbench.experiments.registry import LANGUAGE_METHODS, PAPER_METHODS, TODAYS_METHODS
from cgqbench.methods import METHODS, chosen
from cgqbench.methods.readings import momentum, step_size
from cgqbench.methods.schedules import Budget

BUDGET = Budget(epochs=4, batches=10)

# PAPER-NOTES, row by row: (method, network) → the setting and its value.
PRINTED = [
    ("sgd", "mlp", "lr", 0.01),
    ("sgd", "vgg16", "lr", 0.02),
    ("sgd", "resnet110", "lr", 0.1),
    ("sgd", "densenet100", "lr", 0.1),
    ("sgd", "resnet164", "weight_decay", 3e-4),
    ("sgd", "vgg16", "weight_decay", 5e-4),
    ("adam", "mlp", "lr", 1e-3),
    ("adam", "vgg16", "lr", 1e-4),
    ("lookahead", "vgg16", "lr", 0.02),
    ("lookahead", "resnet110", "k", 5),
    ("lookahead", "resnet110", "alpha", 0.5),
    ("armijo", "mlp", "lr", 0.5),
    ("armijo", "mlp", "c", 0.1),
    ("armijo", "mlp", "backtrack", 0.9),
    ("pal", "mlp", "measuring_step", 0.5),
    ("pal", "mlp", "max_step", 3.16),
    ("pal", "mlp", "direction_factor", 0.4),
    ("pal", "mlp", "step_factor", 1 / 0.6),
    ("cgq", "mlp", "lr", 0.3),
    ("cgq", "resnet110", "lr", 0.3),
    ("cgq", "densenet100", "lr", 0.1),
    ("cgq", "vgg16", "lr", 0.05),
    ("cgq", "resnet164", "nesterov", True),
    ("cgq_ls", "densenet100", "nesterov", True),
    ("cgq_ls", "mlp", "fit", "least_squares"),
    ("cgq", "mlp", "max_momentum", 0.8),
    ("cgq", "mlp", "max_fits", 3),
    ("cgq", "mlp", "smoothing", 0.5),
    ("scgq", "mlp", "search_prob", 0.1),
    ("scgq_ls", "vgg16", "weight_decay", 5e-4),
    ("scgq_relative", "mlp", "max_relative_step", 0.005),
    ("scgq_relative", "resnet110", "decoupled_weight_decay", True),
]


@pytest.mark.parametrize(("method", "network", "setting", "value"), PRINTED)
def test_the_settings_are_the_papers(method, network, setting, value):
    assert chosen(method, network).settings[setting] == value


@pytest.mark.parametrize("method", METHODS)
def test_the_mlp_has_no_decay_in_the_papers_methods(method):
    if method in PAPER_METHODS:
        assert "weight_decay" not in chosen(method, "mlp").settings


def test_a_setting_of_ones_own_takes_the_place_of_the_papers():
    sgd = chosen("sgd:lr=0.5,momentum=0.0", "mlp")
    (group,) = sgd.optimizer(nn.Linear(2, 2), BUDGET, 0).param_groups
    assert (group["lr"], group["momentum"], group["nesterov"]) == (0.5, 0.0, False)
    assert sgd.label == "SGD lr=0.5, momentum=0.0"


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False), ("false", False)])
def test_truth_is_read_in_any_case(text, value):
    optimizer = chosen(f"cgq:nesterov={text}", "mlp").optimizer(nn.Linear(2, 2), BUDGET, 0)
    assert optimizer.options.nesterov is value


def test_no_ceiling_is_none():
    optimizer = chosen("scgq_relative", "mlp").optimizer(nn.Linear(2, 2), BUDGET, 0)
    assert optimizer.param_groups[0]["lr"] == float("inf")
    assert chosen("cgq:lr=none", "mlp").settings["lr"] is None


def test_rules_and_fits_are_named():
    from cgq import fletcher_reeves, least_squares

    optimizer = chosen("cgq:momentum=fletcher_reeves,fit=least_squares", "mlp").optimizer(
        nn.Linear(2, 2), BUDGET, 0
    )
    assert optimizer.options.momentum is fletcher_reeves
    assert optimizer.options.fit is least_squares


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sdg", "no method 'sdg'. Choose from: sgd"),
        ("sgd:rate=1", "no setting 'rate'. It has: lr"),
        ("sgd:lr", "Write name:setting=value"),
        ("sgd:lr=fast", "lr in 'sgd:lr=fast' is 'fast'. It must be: float"),
        ("sgd:lr=1e999", "It must be: float"),
        ("cgq:nesterov=1", "It must be: bool"),
        ("cgq:max_fits=2.5", "It must be: int"),
    ],
)
def test_a_mistake_is_named_with_its_cure(text, message):
    with pytest.raises(ValueError, match=message):
        chosen(text, "mlp")


@pytest.mark.parametrize("text", ["cgq:momentum=heavy", "cgq:fit=cubic"])
def test_an_unknown_rule_is_named_with_the_known_ones(text):
    with pytest.raises(ValueError, match=r"Choose from: (polak_ribiere|two_point)"):
        chosen(text, "mlp").optimizer(nn.Linear(2, 2), BUDGET, 0)


@pytest.mark.parametrize(
    ("method", "library"), [("prodigy", "prodigyopt"), ("mechanic", "mechanic_pytorch")]
)
def test_a_missing_library_is_named_with_its_cure(method, library, monkeypatch):
    monkeypatch.setattr("cgqbench.methods.parsing.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=rf'needs the library {library}.*pip install "cgq\[bench\]'
    ):
        chosen(method, "mlp")
    assert chosen("sgd", "mlp").label == "SGD"


def test_the_armijo_trial_doubles_over_an_epoch():
    optimizer = chosen("armijo", "mlp").optimizer(nn.Linear(2, 2), BUDGET, 0)
    assert optimizer.options.search.growth**BUDGET.batches == pytest.approx(2.0)


@pytest.mark.parametrize("method", ["sgd_cosine", "sgd_warm_cosine", "adamw_cosine"])
def test_the_cosine_ends_at_zero_with_the_run(method):
    found = chosen(method, "mlp")
    optimizer = found.optimizer(nn.Linear(2, 2), BUDGET, 0)
    scheduler = found.scheduler(optimizer, BUDGET)
    rates = []
    for _ in range(BUDGET.steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert max(rates) == pytest.approx(found.settings["lr"])
    assert rates[-1] < 0.01 * max(rates)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("network", "alpha", "decay"),
    [("mlp", 100.0, 0.0), ("vgg16", 1000.0, 5e-4), ("resnet110", 100.0, 3e-4)],
)
def test_cocob_has_the_settings_of_its_network(network, alpha, decay):
    (group,) = chosen("cocob", network).optimizer(nn.Linear(2, 2), BUDGET, 0).param_groups
    assert (group["alpha"], group["weight_decay"]) == (alpha, decay)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_what_it_applied(method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    inputs, targets = torch.randn(8, 3), torch.randn(8, 2)
    optimizer = chosen(method, "mlp").optimizer(model, BUDGET, 0)

    def closure(backward=True):
        if backward:
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        if backward:
            loss.backward()
        return loss

    optimizer.step(closure)
    applied, beta = step_size(optimizer), momentum(optimizer)
    assert (applied is None) == (method == "cocob")
    assert applied is None or 0 < float(applied) < 10
    assert beta is None or 0 <= float(beta) < 1


def test_the_experiments_are_the_papers():
    table1, table2 = EXPERIMENTS["table1"], EXPERIMENTS["table2"]
    assert [(c.dataset, c.network, c.epochs) for c in table1.columns] == [
        ("mnist", "mlp", 20),
        ("svhn", "vgg16", 40),
        ("svhn", "resnet110", 40),
        ("svhn", "densenet100", 40),
    ]
    assert {(c.dataset, c.network, c.epochs) for c in table2.columns} == {
        (dataset, network, 200)
        for dataset in ("cifar10", "cifar100")
        for network in ("vgg16", "resnet164", "densenet100")
    }
    used = {name.partition(":")[0] for each in EXPERIMENTS.values() for name in each.methods}
    assert {*PAPER_METHODS, *TODAYS_METHODS, *LANGUAGE_METHODS} < used == set(METHODS)
    for experiment in EXPERIMENTS.values():
        for cell in experiment.cells(seeds=1):
            assert chosen(cell.method, cell.network).settings


def test_only_keeps_what_is_named_and_refuses_what_is_not():
    table = EXPERIMENTS["table1"]
    cells = table.cells(2, ["svhn", "vgg16", "cgq"])
    assert [(c.dataset, c.network, c.method, c.seed) for c in cells] == [
        ("svhn", "vgg16", "cgq", 0),
        ("svhn", "vgg16", "cgq", 1),
    ]
    with pytest.raises(ValueError, match=r"table1 has no 'cifar10'. Choose from: .*mnist"):
        table.cells(1, ["cifar10"])


@pytest.mark.parametrize(
    ("network", "base"), [("gpt1m", "AdamW"), ("vgg16", "SGD"), ("mlp", "SGD")]
)
def test_the_search_goes_around_the_base_of_the_network(network, base):
    optimizer = chosen("search", network).optimizer(nn.Linear(2, 2), BUDGET, 0)
    assert type(optimizer.base).__name__ == base
    assert optimizer.options.max_relative_step == 0.005


def test_muon_shares_groups_and_state_with_its_parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = chosen("muon", "mlp").optimizer(model, BUDGET, 0)
    twin_model = copy.deepcopy(model)
    twin = chosen("muon", "mlp").optimizer(twin_model, BUDGET, 0)
    inputs = torch.randn(8, 3)

    def move(network, through):
        through.zero_grad()
        network(inputs).square().mean().backward()
        through.step()

    for _ in range(3):
        move(model, optimizer)
        move(twin_model, twin)
        twin.load_state_dict(copy.deepcopy(twin.state_dict()))
    assert len(optimizer.state) == 4  # two matrices, two biases
    assert all(map(torch.equal, model.parameters(), twin_model.parameters()))


def test_muon_says_when_there_is_no_matrix_for_it():
    with pytest.raises(ValueError, match="hidden linear layers, and this network has none"):
        chosen("muon", "mlp").optimizer(nn.Linear(2, 2), BUDGET, 0)


def test_a_name_without_settings_stands_for_all_that_have_it():
    sweep, any_rate = EXPERIMENTS["sweep"], EXPERIMENTS["any_rate"]
    found = {cell.method for cell in sweep.cells(1, only=["gpt1m", "adamw"])}
    assert len(found) == 5
    assert all(method.startswith("adamw:") for method in found)
    assert {cell.method for cell in sweep.cells(1, only=["search"])} == {"search"}
    assert len(any_rate.cells(1, only=["muon"])) == 7
    with pytest.raises(ValueError, match=r"no 'lion'. Choose from: adagrad, adamw, gpt1m"):
        any_rate.cells(1, only=["lion"])
