"""The zoo: small tasks of many kinds, to see whether a default holds where nobody looked before.

It is in three parts, each fixed before any default was tried on it. One may be chosen on the
first. The second was only to be reported; then the method was changed by what it had shown. So
there is a third, fresh one, which is run once, when nothing is changed any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log

from cgqbench.tasks.data.image_sets import SOURCES
from cgqbench.tasks.data.text import VOCABULARY
from cgqbench.tasks.task import Task
from cgqbench.tasks.zoo.adapters import lora
from cgqbench.tasks.zoo.autoencoders import autoencoder, vae
from cgqbench.tasks.zoo.citations import gcn
from cgqbench.tasks.zoo.denoising import diffusion
from cgqbench.tasks.zoo.density import flow
from cgqbench.tasks.zoo.images import convnet, mixer, resnet_gn, vgg_svhn, vit
from cgqbench.tasks.zoo.new_digits import finetune
from cgqbench.tasks.zoo.ordering import sorting
from cgqbench.tasks.zoo.poisson import derivatives
from cgqbench.tasks.zoo.ratings import factorisation
from cgqbench.tasks.zoo.sequences import gru_regression
from cgqbench.tasks.zoo.table import tabular
from cgqbench.tasks.zoo.text import gpt_bf16, gpt_fp32, gpt_small, lstm
from cgqbench.tasks.zoo.views import contrastive
from cgqbench.tasks.zoo.visits import clicks
from cgqbench.tasks.zoo.words import skip_gram

ZOO = "zoo"
EPOCHS = 10
"""Into which every budget is cut: the points of a curve."""


@dataclass(frozen=True)
class Member:
    """A task of the zoo with its budget."""

    make: Callable[[], Task]
    batch_size: int
    steps: int
    guessing: float | None = None
    """The train loss of who knows only how frequent each answer is, or the mean of them."""


_DIGITS, _THINGS, _NUMBERS = (SOURCES[name].label_entropy for name in ("mnist", "cifar10", "svhn"))
_CHARACTERS = log(VOCABULARY)

CHOSEN: dict[str, Member] = {
    "convnet": Member(convnet, 64, 1800, _DIGITS),
    "gpt_small": Member(gpt_small, 32, 1500, _CHARACTERS),
    "gpt_bf16": Member(gpt_bf16, 64, 2000, _CHARACTERS),
    "vae": Member(vae, 128, 1800),
    "derivatives": Member(derivatives, 64, 2000, 0.69),
    "resnet_gn": Member(resnet_gn, 128, 2000, _THINGS),
    "gcn": Member(gcn, 1, 200, log(7)),
}
"""Defaults may be chosen on these."""

REPORTED: dict[str, Member] = {
    "lstm": Member(lstm, 32, 1500, _CHARACTERS),
    "vit": Member(vit, 128, 2000, _THINGS),
    "factorisation": Member(factorisation, 256, 1800, 1.24),
    "autoencoder": Member(autoencoder, 128, 1800),
    "lora": Member(lora, 32, 200),
    "finetune": Member(finetune, 32, 200, log(5)),
    "gpt_large_batch": Member(gpt_bf16, 256, 600, _CHARACTERS),
    "vgg_svhn": Member(vgg_svhn, 64, 2000, _NUMBERS),
    "gru_regression": Member(gru_regression, 64, 1500, 0.975),
}
"""Nothing was chosen on these; what they showed when they were first run changed the method."""

FRESH: dict[str, Member] = {
    "skip_gram": Member(skip_gram, 256, 1500, 6 * log(6) - 5 * log(5)),
    "clicks": Member(clicks, 256, 1500, 0.617),
    "mixer": Member(mixer, 64, 1200, _DIGITS),
    "diffusion": Member(diffusion, 64, 1000, 1.0),
    "sorting": Member(sorting, 64, 1500, log(100)),
    "flow": Member(flow, 128, 1500, 12.18),
    "contrastive": Member(contrastive, 128, 1000, log(255)),
    "tabular": Member(tabular, 64, 1200, 0.3153),
}
"""Nothing is changed by these: they are run once, at the end."""

PARTS: dict[str, dict[str, Member]] = {"chosen": CHOSEN, "reported": REPORTED, "fresh": FRESH}
MEMBERS: dict[str, Member] = {**CHOSEN, **REPORTED, **FRESH}

BESIDE: dict[str, Member] = {"gpt_fp32": Member(gpt_fp32, 64, 2000, _CHARACTERS)}
"""No members, but made of them: to tell what rounding does from what the method does."""


def part_of(name: str) -> str:
    """The part that a task is of; what is beside the zoo, or no longer in it, was chosen on.

    >>> part_of("gcn"), part_of("lstm"), part_of("flow")
    ('chosen', 'reported', 'fresh')
    """
    return next((part for part, members in PARTS.items() if name in members), "chosen")


def zoo_task(name: str) -> Task:
    """A task of the zoo; an epoch of it is a tenth of its budget.

    >>> task = zoo_task("gcn")
    >>> task.epoch_size
    20
    """
    known = MEMBERS | BESIDE
    if name not in known:
        raise ValueError(f"The zoo has no {name!r}. Choose one of {', '.join(known)}.")
    member = known[name]
    return replace(member.make(), epoch_size=member.steps // EPOCHS * member.batch_size)
