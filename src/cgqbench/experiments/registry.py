"""The experiments as data: what is trained, by which methods, for how long."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from cgqbench.experiments import paper
from cgqbench.experiments.experiment import Column, Experiment
from cgqbench.tasks.zoo import EPOCHS, PARTS, ZOO

PAPER_METHODS = paper.METHODS
RIVALS = ("schedulefree_adamw", "prodigy", "dadaptation", "dog", "mechanic", "gen")
UNTUNED = (*RIVALS, "scgq_relative", "search")
TODAYS_METHODS = ("sgd_cosine", "adamw_cosine", "schedulefree_sgd", *UNTUNED)
LANGUAGE_METHODS = ("sgd", "adamw", "adamw_cosine", "adagrad", "muon", *UNTUNED)
RULES = ("polak_ribiere", "fletcher_reeves", "hestenes_stiefel", "dai_yuan")
MNIST = Column("mnist", "mlp", 20)

TABLE1 = (
    MNIST,
    Column("svhn", "vgg16", 40),
    Column("svhn", "resnet110", 40),
    Column("svhn", "densenet100", 40),
)
TABLE2 = tuple(
    Column(dataset, network, 200)
    for network in ("vgg16", "resnet164", "densenet100")
    for dataset in ("cifar10", "cifar100")
)

# Without a rate: what the search and the relative ceiling do around any optimizer.
GPT1M, GPT10M = (Column("stdlib", network, 6, 32) for network in ("gpt1m", "gpt10m"))
IMAGES = tuple(Column("cifar10", network, 12, 128) for network in ("vgg16", "resnet110"))
ADAMW_SWEEP = (
    *(f"adamw:lr={lr}" for lr in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)),
    *(f"adamw_cosine:lr={lr}" for lr in (3e-4, 1e-3, 3e-3, 6e-3, 1e-2, 2e-2)),
    "search",
    "search:max_relative_step=0.01",
)
SGD_SWEEP = (
    *(f"sgd_cosine:lr={lr}" for lr in (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)),
    *(f"sgd_warm_cosine:lr={lr}" for lr in (0.02, 0.05, 0.1, 0.2, 0.4)),
    "search",
)
ANY_RATE = tuple(
    method
    for base in ("adamw", "sgd", "adagrad", "muon")
    for lr in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    for method in (f"search:base={base},lr={lr}", f"{base}:lr={lr}")
)
# Every kind of task, beside the best of two schedules at five rates each.
ZOO_COLUMNS = tuple(
    Column(ZOO, name, EPOCHS, member.batch_size, part)
    for part, members in PARTS.items()
    for name, member in members.items()
)
ZOO_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
ZOO_METHODS = (
    *(f"{method}:lr={lr}" for method in ("adamw", "adamw_cosine") for lr in ZOO_RATES),
    *RIVALS,
    "search",
)
GREEDY = tuple(f"search:greedy=True,max_relative_step={rho}" for rho in (0.005, 0.01, 0.02))
CEILINGS = (0.001, 0.003, 0.005, 0.01, 0.02, 0.03)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("table1", "MNIST and SVHN", TABLE1, PAPER_METHODS),
        Experiment("table2", "CIFAR-10 and CIFAR-100", TABLE2, PAPER_METHODS),
        Experiment("today1", "Table 1 with today's methods", TABLE1, TODAYS_METHODS),
        Experiment("today2", "Table 2 with today's methods", TABLE2, TODAYS_METHODS),
        Experiment("lm", "Language models", (GPT1M, GPT10M), LANGUAGE_METHODS),
        Experiment("sweep", "Tuned AdamW, 1,500 steps", (GPT1M, GPT10M), ADAMW_SWEEP),
        Experiment(
            "sweep_long",
            "Tuned AdamW, 6,000 steps",
            (replace(GPT1M, epochs=24), replace(GPT10M, epochs=24)),
            ADAMW_SWEEP,
        ),
        Experiment("sweep_images", "Tuned SGD", IMAGES, SGD_SWEEP),
        Experiment("any_rate", "The base's learning rate", (GPT1M,), ANY_RATE),
        Experiment(
            "ceiling",
            "Ablation: the relative ceiling, the search and the average",
            (IMAGES[0], replace(IMAGES[1], epochs=4), GPT1M),
            tuple(
                f"search:max_relative_step={ceiling},search_prob={p}"
                for ceiling, p in product(CEILINGS, (0.1, 0.0))
            ),
        ),
        Experiment(
            "safety",
            "Nothing dies: the default ceiling and three times it",
            (
                replace(MNIST, epochs=3),
                Column("cifar10", "vgg16", 3, 128),
                Column("cifar10", "resnet110", 1, 128),
                Column("cifar10", "densenet100", 1, 128),
                replace(GPT1M, epochs=3),
            ),
            tuple(
                f"{method}:max_relative_step={ceiling}"
                for method, ceiling in product(("search", "scgq_relative"), (0.005, 0.015))
            ),
        ),
        Experiment("zoo", "The zoo", ZOO_COLUMNS, ZOO_METHODS),
        Experiment(
            "greedy",
            "Ablation: a search that shortens what descends, in bf16 and in fp32",
            tuple(Column(ZOO, name, EPOCHS, 64) for name in ("gpt_bf16", "gpt_fp32")),
            ("search", "search:search_prob=0.0", *GREEDY),
        ),
        Experiment(
            "figure2",
            "Run time per epoch, and accuracy over time",
            (Column("mnist", "mlp", 3), Column("cifar10", "resnet164", 2)),
            (
                *PAPER_METHODS[:6],
                *("cgq:momentum=0.8", "cgq", "cgq_ls", "scgq:momentum=0.8", "scgq", "scgq_ls"),
                *paper.BESIDE,
            ),
        ),
        Experiment(
            "figure3a",
            "Ablation: the momentum rule",
            (MNIST,),
            tuple(f"cgq:momentum={rule}" for rule in (*RULES, 0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9)),
        ),
        Experiment(
            "figure3b",
            "Ablation: the probability of a search",
            (MNIST,),
            ("sgd", *(f"scgq:search_prob={p}" for p in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0))),
        ),
        Experiment(
            "figure3c",
            "Ablation: the ceilings of step and momentum",
            (MNIST,),
            tuple(
                f"cgq:lr={lr},max_momentum={beta}"
                for lr, beta in product((0.01, 0.03, 0.1, 0.3, 1.1), (0.0, 0.3, 0.6, 0.8, 1.0))
            ),
        ),
        Experiment(
            "figure4",
            "Dynamics of training",
            (Column("cifar100", "resnet164", 200),),
            PAPER_METHODS,
        ),
    )
}
